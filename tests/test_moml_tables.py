"""MOML's tables: their experts, the published numbers, and a line that runs (moml.md, sections 4 and 5)."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from hedgerow.cli import main
from hedgerow.platform.errors import UserError
from hedgerow.platform.runs import RunFolder
from hedgerow.platform.tracking import RunLog
from hedgerow.searchspaces.tables.line import find_lines
from hedgerow.searchspaces.tables.moml import moml_tables
from hedgerow.searchspaces.tables.stream_line import plan_streams

TABLES = moml_tables()
LINES = [(table, line) for table in TABLES.values() for line in table.lines]
EXPERTS = {"toe": 8, "fs": 4, "mogd": 8, "ftml": 8, "moml": 24, "b_moml": 24, "moml_zero": 24}
FAMILIES = {"moml": moml_tables}


@pytest.mark.parametrize(("table", "line"), LINES, ids=lambda one: one.name)
def test_every_method_of_a_line_has_the_experts_of_the_thesis_and_its_own_hedge(table, line):
    plans = plan_streams(table, line)
    assert [plan.heading for plan in plans] == list(line.methods)
    for plan in plans:
        assert len(plan.search.configurations) == EXPERTS[plan.search.experiment.algorithm.name]
        assert (plan.search.search.kind, plan.search.search.gamma, plan.search.search.rate) == ("hedge", 0.1, "fixed")
        algorithm = plan.search.experiment.algorithm
        if algorithm.name != "fs":
            assert (algorithm.lr, algorithm.weight_decay) == (0.1, 1e-3)


@pytest.mark.parametrize(
    ("name", "tasks", "train", "batch"),
    [("s-mnist", 1000, 60, 10), ("cifar100-5way", 200, 250, 20), ("miniimagenet-5way", 100, 250, 50)],
)
def test_streams_are_those_of_the_thesis(name, tasks, train, batch):
    (line,) = find_lines(f"moml/5.1/{name}", FAMILIES)[1]
    experiment = plan_streams(TABLES["5.1"], line, methods=["MOML"])[0].search.experiment
    assert (experiment.rounds, experiment.task.partition.train, experiment.algorithm.batch_size) == (
        tasks,
        train,
        batch,
    )


def test_published_numbers_are_those_of_the_thesis():
    def published(name: str) -> dict:
        _, (line,) = find_lines(name, FAMILIES)
        return {heading: (cells["ctm"], cells["ltm"]) for heading, cells in line.published.items()}

    assert published("moml/5.1/s-mnist") == {
        "TOE": ("71.22", "63.73"), "FS": ("71.15", "71.14"), "MOGD": ("74.63", "74.07"), "FTML": ("80.62", "82.49"),
        "MOML": ("85.82", "87.49"),
    }  # fmt: skip
    assert published("moml/5.4/cifar100-5way")["random B=10"] == ("55.07", "64.37")
    assert published("moml/A.9/cifar100-5way-disjoint")["FTML"] == ("38.38", "50.90")
    assert published("moml/A.10/s-mnist")["MOML-zero"] == ("84.09", "86.53")


def test_the_first_table_that_has_a_line_may_be_left_out():
    table, lines = find_lines("moml/s-mnist", FAMILIES)
    assert (table.name, [line.name for line in lines]) == ("moml/5.1", ["s-mnist"])
    with pytest.raises(UserError, match="there is no such table; did you mean"):
        find_lines("moml/5.11", FAMILIES)


def test_a_line_runs_and_is_reported_again(ray_here, tmp_path):
    def hedgerow(*arguments: str) -> str:
        done = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    told = hedgerow(
        "table", "moml/small/digits", "--methods", "fs,moml", "--set", "rounds=4", "--set", "evaluation.every=2",
        "--set", "search.report_every=2", "--set", "tracking.enabled=false", "--output", str(tmp_path),
    )  # fmt: skip
    table = json.loads((tmp_path / "tables" / "moml-small-digits" / "table.json").read_text())
    assert [line["method"] for line in table["lines"]] == ["FS", "MOML"]
    for line in table["lines"]:
        folder = RunFolder(tmp_path / line["run"])
        hedge = RunLog(folder.metrics).read()
        experts = [RunLog(file).read() for file in sorted(folder.path.glob("experts/*/metrics.jsonl"))]
        assert len(experts) == line["experts"] == EXPERTS[line["method"].lower()]
        weights = np.array([record["weights"] for record in hedge])
        accuracies = np.array([[record["test_accuracy"] for record in records] for records in experts]).T
        assert weights[0] == pytest.approx(1 / len(experts))
        assert line["ctm"] == pytest.approx((weights * accuracies).sum(1).mean())
        assert line["ltm"] == pytest.approx(weights[-1] @ [records[-1]["ltm"] for records in experts])
        assert line["regret"] == pytest.approx((weights * (1 - accuracies)).sum() - (1 - accuracies).sum(0).min())
        assert line["changed"] == ["rounds=4", "evaluation.every=2", "search.report_every=2"]
    again = hedgerow("table", "moml/small/digits", "--report", "--output", str(tmp_path))
    assert again == told[told.index("moml/small:") :]


def test_a_grid_option_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["table", "moml/5.1/s-mnist", "--grid"])
    assert done.exit_code == 2
    assert "the experts of moml/5.1 are its published grids already" in done.stderr
