"""Charts, the numbers behind them, and their SVG in a page."""

from xml.etree import ElementTree

import pytest

from hedgerow.platform.ui.charts import areas, bars, figure, heat, histogram, lines
from hedgerow.platform.ui.series import Series, mean_series
from hedgerow.reports.page.svg import svg

RISING = [(i, 0.1 + 0.8 * (1 - 0.8**i)) for i in range(1, 41)]


def test_what_is_not_finite_is_left_out_and_nothing_is_no_chart():
    gap = lines("t", [Series("a", [(1, 0.5), (2, float("nan")), (3, 0.7)])], "round", "loss")
    assert gap.data.cells == {"round": ["1", "3"], "a": ["0.5", "0.7"]}
    assert lines("t", [Series("a", [(1, float("inf"))])], "round", "loss") is None
    # A round that transmits nothing has the traffic of the one before.
    still = lines("t", [Series("a", [(8, 0.5), (8, 0.75)]), Series("b", [(8, 0.25), (9, 1.0)])], "traffic", "accuracy")
    assert still.data.cells == {"traffic": ["8", "8", "9"], "a": ["0.50", "0.75", "-"], "b": ["0.25", "-", "1.00"]}
    assert svg(lines("t", [Series("a", [(1, 0.5)])], "round", "accuracy", "%")).count("<use ") == 1


def test_a_line_is_a_mean_over_seeds_with_one_sample_standard_deviation_as_its_band():
    curves = [{1: (10.0, 0.1), 2: (20.0, 0.5), 3: (30.0, 0.9)}, {1: (12.0, 0.3), 2: (24.0, 0.5)}]
    line = mean_series("FedAvg", curves, 4)
    # It ends with the shortest run. Two values a and b have the sample standard deviation |a - b| / sqrt 2.
    assert line.points == [(11.0, pytest.approx(0.2)), (22.0, 0.5)]
    assert line.spread == [pytest.approx(0.2 / 2**0.5), 0.0]
    assert (line.label, line.index) == ("FedAvg", 4)
    assert mean_series("FedAvg", curves[:1], 0).spread == []


def test_weights_and_counts_are_behind_their_charts():
    weights = areas("w", [1, 2], [("a", [0.25, 0.75], 0), ("b", [0.75, 0.25], 1)], "weight")
    assert weights.data.cells == {"round": ["1", "2"], "a": ["25.0 %", "75.0 %"], "b": ["75.0 %", "25.0 %"]}
    cells = heat("h", [[4, 0], [1, 1]], ["cat", "dog"], "client")
    assert cells.data.cells == {"client": ["0", "1"], "cat": ["4", "1"], "dog": ["0", "1"]}
    # Three cells are not empty, of two shades; the scale has eight.
    assert [svg(cells).count(shade) for shade in ("opacity: 0.5", "var(--accent)")] == [2, 10]
    assert all(f">{end}</text>" in svg(cells) for end in ("1", "4 samples"))
    sizes = bars("b", [("run", {"down": 2e6, "up": 5e5})], "bytes", "B")
    assert sizes.data.texts == [{"experiment": "run", "down": "2 MB", "up": "500 kB"}]


def test_the_steep_start_is_below_the_axis_and_a_large_bound_above():
    (axes,) = figure([lines("t", [Series("a", RISING)], "round", "accuracy", "%", late=True)]).axes
    assert axes.get_ylim()[0] == pytest.approx(0.65, abs=0.02)
    assert axes.yaxis.get_major_formatter()(0.9) == "90 %"
    regret = Series("regret", [(1, -0.1), (2, 0.1)])
    chart = lines("t", [regret, Series("bound", [(1, 1), (2, 9)], index=1)], "round", "regret", top=0.4)
    assert figure([chart]).axes[0].get_ylim()[1] == 0.4
    assert chart.note == "Above the axis at the end: bound 9."


def test_bands_are_deviations_and_losses_of_many_sizes_are_logarithmic():
    spread = Series("a", [(1, 0.5), (2, 0.6)], [0.1, 0.2])
    (axes,) = figure([lines("t", [spread], "round", "accuracy", "%")]).axes
    assert axes.patches[0].get_xy()[:4].tolist() == pytest.approx(
        [pytest.approx(p) for p in ([1, 0.6], [2, 0.8], [2, 0.4], [1, 0.4])]
    )
    (axes,) = figure([lines("t", [Series("a", [(1, 0.02), (2, 3)])], "round", "loss")]).axes
    assert axes.get_yscale() == "log"
    assert [tick for tick in axes.get_yticks() if 0.02 <= tick <= 3] == pytest.approx([0.03, 0.1, 0.3, 1, 3])


def test_a_metric_of_the_users_own_is_within_the_axes_where_it_is_no_share():
    for gain in ([(1, -0.3), (2, 0.1)], [(1, 0.9), (2, 1.2)]):
        (axes,) = figure([lines("t", [Series("a", gain)], "round", "accuracy gain", "%")]).axes
        low, high = axes.get_ylim()
        assert low <= gain[0][1] < gain[1][1] <= high


def test_a_figure_has_one_legend_outside_of_its_panels():
    one = lines("t", [Series("a", RISING), Series("b", RISING, index=9)], "round", "loss")
    drawn = figure([one, one])
    (legend,) = drawn.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b"]
    assert one.legend == [("s0", "a"), ("s1 dashed", "b")]
    drawn.draw_without_rendering()
    left = legend.get_window_extent().x0
    assert all(axes.get_window_extent().x1 < left for axes in drawn.axes)


EVIL = '<b> & "#0072b2" <!-- --> $\\x$'


@pytest.mark.parametrize(
    "chart",
    [
        lines(EVIL, [Series(EVIL, RISING, [0.1] * 40)], EVIL, EVIL, "%", [0.5]),
        areas(EVIL, [1, 2], [(EVIL, [0.5, 0.5], 0), ("2 others", [0.5, 0.5], -1)], EVIL),
        bars(EVIL, [(EVIL, {EVIL: 3.0})], EVIL, "s"),
        histogram(EVIL, [0, 0.5, 1], {EVIL: [1, 2]}, EVIL, EVIL, "%"),
        heat(EVIL, [[4, 0], [1, 1]], [EVIL, "dog"], EVIL),
    ],
    ids=["lines", "areas", "bars", "histogram", "heat"],
)
def test_names_are_texts_and_colours_are_those_of_the_page(chart):
    figure([chart], titles=True).draw_without_rendering()
    drawn = svg(chart)
    root = ElementTree.fromstring(drawn)
    texts = [element.text for element in root.iter() if element.tag in ("title", "text", "desc")]
    assert EVIL in texts
    styles = " ".join(element.get("style", "") for element in root.iter())
    assert "var(--" in styles
    assert "#" not in styles
    assert {element.tag for element in root.iter()} <= {
        "svg", "title", "desc", "g", "path", "text", "defs", "clipPath", "rect", "use",
    }  # fmt: skip
