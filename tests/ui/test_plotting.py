"""Colours of lines: the same for a method in every figure, and different within a figure; and figures that fail."""

import pytest
from preloaded import run_python

from hedgerow.platform.ui.plotting import COLOURS, METHODS, colour_places, line_style, optional_figures


def colours(*labels: str) -> list[str]:
    return [style["color"] for style in map(line_style, colour_places(labels))]


@pytest.mark.parametrize("form", ["{}", "digits-{}", "{} (3 seeds)"])
def test_a_method_has_the_same_colour_in_every_figure(form):
    for place, method in enumerate(METHODS):
        assert colours("mine", form.format(method), "other")[1] == COLOURS[place]
        assert colours(form.format(method.upper())) == [COLOURS[place]]


def test_lines_of_a_figure_have_different_colours_or_dashes():
    labels = ["FedAvg", "fedavg, lr=0.3", "mine", "FedDyn", *map(str, range(20))]
    styles = [line_style(place) for place in colour_places(labels)]
    assert len({tuple(style.values()) for style in styles}) == len(labels)
    assert styles[0]["color"] == COLOURS[METHODS.index("fedavg")]


def test_other_labels_have_the_colours_in_their_order():
    assert colours("a", "b", "c") == COLOURS[:3]


def test_an_error_of_a_figure_is_a_sentence():
    sentences = []
    with optional_figures(sentences.append):
        raise AttributeError("no such attribute\nmore")
    with optional_figures(sentences.append):
        pass
    assert sentences == ["figures are missing, since drawing failed (AttributeError: no such attribute)"]


HALF_IMPORTED = """
import sys, threading, time
sys.path.insert(0, {folder!r})
threading.Thread(target=__import__, args=("IPython",)).start()
while "IPython" not in sys.modules:
    time.sleep(0.01)
from hedgerow.platform.ui.plotting import new_figure
new_figure().savefig({folder!r} + "/figure.png")
"""


def test_a_figure_waits_for_an_import_of_ipython_in_another_thread(tmp_path):
    (tmp_path / "IPython").mkdir()
    (tmp_path / "IPython/__init__.py").write_text(
        "import time\ntime.sleep(3)\nversion_info = (8, 0)\nget_ipython = lambda: None\n"
    )
    run_python("-c", HALF_IMPORTED.format(folder=str(tmp_path)))
    assert (tmp_path / "figure.png").stat().st_size
