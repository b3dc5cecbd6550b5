"""Colours of lines: the same for a method in every figure, and different within a figure."""

import pytest

from hedgerow.platform.ui.plotting import COLOURS, METHODS, line_styles


def colours(*labels: str) -> list[str]:
    return [style["color"] for style in line_styles(labels)]


@pytest.mark.parametrize("form", ["{}", "digits-{}", "{} (3 seeds)"])
def test_a_method_has_the_same_colour_in_every_figure(form):
    for place, method in enumerate(METHODS):
        assert colours("mine", form.format(method), "other")[1] == COLOURS[place]
        assert colours(form.format(method.upper())) == [COLOURS[place]]


def test_lines_of_a_figure_have_different_colours_or_dashes():
    labels = ["FedAvg", "fedavg, lr=0.3", "mine", "FedDyn", *map(str, range(20))]
    styles = line_styles(labels)
    assert len({tuple(style.values()) for style in styles}) == len(labels)
    assert styles[0]["color"] == COLOURS[METHODS.index("fedavg")]


def test_other_labels_have_the_colours_in_their_order():
    assert colours("a", "b", "c") == COLOURS[:3]
