"""The pictures of a report and the numbers behind them."""

import re

import pytest

from hedgerow.platform.ui.series import Series
from hedgerow.reports.charts.charts import areas, heat, lines
from hedgerow.reports.charts.svg import Scale, element


def test_texts_and_attributes_are_escaped():
    assert element("text", "<a & b>", title='"x"') == '<text title="&#34;x&#34;">&lt;a &amp; b&gt;</text>'


def test_ticks_are_round_and_within():
    assert Scale(0, 1, 0, 100).ticks() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Scale(1, 7, 0, 100).ticks(whole=True) == [2, 4, 6]
    assert Scale(0.02, 3, 0, 1, log=True).ticks() == pytest.approx([0.03, 0.1, 0.3, 1, 3])
    assert Scale(10, 1000, 0, 2, log=True)(100) == pytest.approx(1)


def test_what_is_not_finite_is_left_out_and_nothing_is_no_picture():
    gap = lines("t", [Series("a", [(1, 0.5), (2, float("nan")), (3, 0.7)])], "round", "loss")
    assert [row[0] for row in gap.data.rows] == ["1", "3"]
    assert lines("t", [Series("a", [(1, float("inf"))])], "round", "loss") is None
    assert lines("t", [Series("a", [(1, 0.5)])], "round", "accuracy", percent=True).svg.count("<circle") == 1


def test_weights_and_counts_stand_behind_their_pictures():
    weights = areas("w", [1, 2], [("a", [0.25, 0.75]), ("b", [0.75, 0.25])], "weight")
    assert weights.data.rows == [["1", "25.0 %", "75.0 %"], ["2", "75.0 %", "25.0 %"]]
    cells = heat("h", [[4, 0], [1, 1]], ["cat", "dog"], "client")
    assert cells.data.rows == [["0", "4", "0"], ["1", "1", "1"]]
    # Three cells are not empty, of two strengths.
    assert sum(d.count("M") for d in re.findall(r'<path d="(.*?)" class="cell"', cells.svg)) == 3
    assert cells.svg.count('class="cell"') == 2
