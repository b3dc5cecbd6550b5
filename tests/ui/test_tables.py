"""Numbers as text, and tables of them in every form."""

import math
from dataclasses import dataclass

import pytest

from hedgerow.platform.common.numbers import column, cost_text, number, p_value, percent, tick, unit_of
from hedgerow.platform.common.table import Column, Table


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
    names = ("test_accuracy", "best_ctm", "weight", "client_loss", "bytes_up", "simulated_seconds", "rounds", "a.loss")
    assert [unit_of(name) for name in names] == ["%", "%", "%", "loss", "B", "s", "", ""]


def test_sizes_of_a_column_have_one_prefix():
    assert column([1.2e9, 3e6, None], "B") == ["1.2 GB", "0.003 GB", "-"]


def test_more_digits_where_rounding_would_reach_a_target():
    assert percent(0.89999, [0.5, 0.9]) == "89.999 %"


def test_costs_p_values_and_ticks():
    assert [cost_text(148, 200, 74), cost_text(None, 1000, 148), cost_text(None, 100, 148)] == [
        "148 (2.0×)", "1000+ (>6.8×)", "100+",
    ]  # fmt: skip
    assert [p_value(0.0001), p_value(0.0321)] == ["<0.001", "0.032"]
    assert [tick(1.2e6), tick(12000), tick(0.05), tick(0.005, "%")] == ["1.2M", "12k", "0.05", "0.5 %"]


@dataclass(frozen=True)
class Range:
    """A cell of two numbers."""

    mean: float

    def text(self, unit: str) -> str:
        return f"{number(self.mean, unit)} or less"


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
