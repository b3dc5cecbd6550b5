"""The report shows the distributions from which clients draw by FedEx."""

import pytest
from reported_runs import small

from hedgerow.platform.common.numbers import percent
from hedgerow.platform.runs.seed_groups import group_by_seed
from hedgerow.reports.page.layout import sections
from hedgerow.reports.page.page import render_page
from hedgerow.reports.sections.report_data import read_all

FEDEX = {
    "factors": [
        [{"algorithm.lr": rate} for rate in (0.01, 0.1, 1.0)],
        [{"algorithm.momentum": momentum} for momentum in (0.0, 0.9)],
    ]
}


@pytest.mark.exhaustive("processes")
def test_each_distribution_is_a_stacked_figure_over_the_rounds(tmp_path):
    drawn, plain = small(tmp_path, "drawn", 0, fedex=FEDEX), small(tmp_path, "plain", 0)
    data = read_all([str(drawn.path), str(plain.path)])
    by_name = {section.name: section for section in sections(data, group_by_seed(data.all_runs)[0])}
    lr, momentum = by_name["fedex"].parts
    assert lr.title == "Distribution of lr by round: drawn, seed 0"
    assert {label for _, label in lr.legend} == {"lr=0.01", "lr=0.1", "lr=1"}
    assert {label for _, label in momentum.legend} == {"momentum=0", "momentum=0.9"}
    records = data.runs[0].records
    for j, label in enumerate(["lr=0.01", "lr=0.1", "lr=1"]):
        assert lr.data.cells[label] == [percent(record[f"theta_0_{j}"]) for record in records]
    assert lr.title in render_page(data)


def test_a_report_without_fedex_has_no_such_section(tmp_path):
    data = read_all([str(small(tmp_path, "plain", 0).path)])
    assert "fedex" not in {section.name for section in sections(data, group_by_seed(data.all_runs)[0])}
