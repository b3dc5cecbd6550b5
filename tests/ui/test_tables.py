"""Numbers as text, and tables of them in every form."""

import math
from dataclasses import dataclass

import pytest

from hedgerow.platform.common.numbers import (
    MeanStd,
    column,
    cost_text,
    name_of,
    number,
    p_value,
    percent,
    tick,
    unit_of,
)
from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.runs.statistics import Estimate


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.5, "%", "50.0 %"),
        (999999.0, "loss", "999999.000"),
        (4e31, "loss", "4.00e+31"),
        (1234567, "count", "1,234,567"),
        (1234567890, "count", "1.235e+09"),
        (1200000, "B", "1.2 MB"),
        (12.345, "s", "12.3 s"),
        (3723.4, "s", "3,723 s"),
        (0.0123456, "", "0.01235"),
        (123456.0, "", "123456"),
        (7, "", "7"),
        (None, "%", "-"),
        (math.nan, "%", "nan"),
        (True, "", "true"),
        ([64, 64], "", "[64, 64]"),
    ],
)
def test_a_number_has_the_form_of_its_unit(value, unit, text):
    assert number(value, unit) == text


def test_a_quantity_has_its_unit_by_its_name():
    names = (
        "test_accuracy",
        "best_ctm",
        "weight",
        "client_loss",
        "bytes_up",
        "simulated_seconds",
        "rounds",
        "a.loss",
        "transmissions_to_0.8",
        "rounds_to_loss 0.25",
        "transmissions_to_loss 2",
    )
    assert [unit_of(name) for name in names] == ["%", "%", "%", "loss", "B", "s", "", "setting", "", "", ""]


def test_whole_numbers_of_a_column_are_exact():
    assert column([1234567890, 5, None], "") == ["1234567890", "5", "-"]


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        ([1.2e9, 3e6, None], "B", ["1.200 GB", "0.003 GB", "-"]),
        ([24e6, 3.08e6], "B", ["24.00 MB", "3.08 MB"]),
        ([2.59, 0.0965, 120.0], "s", ["2.59 s", "0.10 s", "120.00 s"]),
        ([12, 10.0, math.nan], "", ["12", "10", "nan"]),
        ([1.0 / 3, 20], "", ["0.33", "20.00"]),
        ([300200, 1200800.0], "", ["300200", "1200800"]),
        ([300200, 1200800.0], "count", ["300,200", "1,200,800"]),
        # Means of counts over three seeds.
        ([0.0, 1 / 3, 4.0], "count", ["0.00", "0.33", "4.00"]),
        ([1e-6, 3.0], "", ["1.000e-06", "3.000e+00"]),
        ([0.001, 0.1, 1.0, "cosine"], "setting", ["0.001", "0.1", "1", "cosine"]),
        ([0.9, 0.8999], "%", ["90.00 %", "89.99 %"]),
        ([MeanStd(11.5, 0.7071, 2), MeanStd(9, None, 1)], "", ["11.50 ± 0.71", "9.00"]),
        ([Estimate(2.0, 1.75, 2.25), Estimate(3.0)], "s", ["2.00 s [1.75 s, 2.25 s]", "3.00 s"]),
    ],
)
def test_the_numbers_of_a_column_have_the_same_decimals(values, unit, texts):
    assert column(values, unit, [0.9]) == texts


def test_a_quantity_has_one_name():
    names = (
        "best_test_accuracy",
        "client_accuracy_worst10",
        "ctm",
        "bytes",
        "transmissions_to_0.8",
        "rounds_to_loss 2",
    )
    assert [name_of(name) for name in names] == [
        "best test accuracy", "client accuracy, worst 10 %", "CTM", "sent", "transmissions to 80 %", "rounds to loss 2",
    ]  # fmt: skip


def test_more_digits_where_rounding_would_reach_a_target():
    assert percent(0.89999, [0.5, 0.9]) == "89.999 %"


def test_costs_p_values_and_ticks():
    assert [cost_text(148, 200, 74), cost_text(None, 1000, 148), cost_text(None, 100, 148)] == [
        "148 (2.0 × the cheapest)", "1000+ (>6.8 × the cheapest)", "100+",
    ]  # fmt: skip
    assert [p_value(0.0001), p_value(0.0321)] == ["<0.001", "0.032"]
    assert [tick(1.2e6), tick(12000), tick(0.05), tick(0.005, "%")] == ["1.2M", "12k", "0.05", "0.5 %"]


@dataclass(frozen=True)
class Range:
    """A cell of two numbers."""

    mean: float

    @property
    def numbers(self) -> list[float]:
        return [self.mean]

    def text(self, texts: list[str]) -> str:
        return f"{texts[0]} or less"


ROWS = [{"name": "<a>", "test_accuracy": 0.5, "bytes": 3000}, {"name": "b|c", "test_accuracy": Range(0.75)}]
TABLE = Table(ROWS, "Results", [Column("test_accuracy", "accuracy", better="max"), Column("bytes", "sent")], marked=[0])


def test_a_table_is_the_same_in_markdown_html_and_csv(tmp_path):
    assert TABLE.texts == [
        {"name": "<a>", "accuracy": "50.0 %", "sent": "3 kB"},
        {"name": "b|c", "accuracy": "75.0 % or less", "sent": "-"},
    ]
    assert TABLE.markdown().splitlines() == [
        "| name | accuracy | sent |", "| --- | --- | --- |",
        "| <a> | 50.0 % | 3 kB |", "| b\\|c | 75.0 % or less | - |",
    ]  # fmt: skip
    html = TABLE.html()
    for part in (
        "<caption>Results</caption>",
        '<th class="n">accuracy</th>',
        '<tr class="marked"><td>&lt;a&gt;</td><td class="n">50.0 %</td><td class="n">3 kB</td></tr>',
        '<td class="n best">75.0 % or less</td>',
    ):
        assert part in html
    Table(ROWS[:1]).csv(tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text().splitlines() == ["name,test_accuracy,bytes", "<a>,0.5,3000"]
