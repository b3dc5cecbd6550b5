"""MOML's tables: their experts, the published numbers, and a line that runs (moml.md, sections 4 and 5)."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.extra.table_file import family_tables, find_rows
from hedgerow.searchspaces.extra.table_search import row_searches

TABLES = family_tables("moml")
LINES = [(table, line) for table in TABLES.values() for line in table.rows]
EXPERTS = {"toe": 8, "fs": 4, "mogd": 8, "ftml": 8, "moml": 24, "b_moml": 24, "moml_zero": 24}


@pytest.mark.parametrize(("table", "line"), LINES, ids=lambda one: one.name)
def test_every_method_of_a_line_has_the_experts_of_the_thesis_and_its_own_hedge(table, line):
    plans = row_searches(table, line)
    assert [plan.headings[0] for plan in plans] == list(line.methods)
    for plan in plans:
        assert len(plan.search.configurations) == EXPERTS[plan.search.experiment.algorithm.name]
        assert (plan.search.search.kind, plan.search.search.gamma, plan.search.search.rate) == ("hedge", 0.1, "fixed")
        algorithm = plan.search.experiment.algorithm
        if algorithm.name != "fs":
            assert (algorithm.lr, algorithm.weight_decay) == (0.1, 1e-3)


def test_every_expert_of_a_table_runs_every_task():
    (line,) = find_rows("moml/5.1/s-mnist")[1]
    assert {plan.search.search.comeback for plan in row_searches(TABLES["5.1"], line)} == {"off"}


def test_a_table_takes_the_cross_entropy_of_algorithm_10():
    (line,) = find_rows("moml/5.1/s-mnist")[1]
    changed = ["search.metric=test_loss", "search.loss=raw", "search.range=[0, 4.6]"]
    by_set = row_searches(TABLES["5.1"], line, changed)[0].search.search
    rule = {"metric": "test_loss", "loss": "raw", "range": [0.0, 4.6]}
    by_rule = row_searches(TABLES["5.1"], replace(line, values={**line.values, "search": rule}))[0].search.search
    assert by_set == by_rule
    assert (by_set.mode, by_set.loss, by_set.range, by_set.gamma, by_set.rate) == (
        "min", "raw", [0.0, 4.6], 0.1, "fixed",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tasks", "train", "batch"),
    [("s-mnist", 1000, 60, 10), ("cifar100-5way", 200, 250, 20), ("miniimagenet-5way", 100, 250, 50)],
)
def test_streams_are_those_of_the_thesis(name, tasks, train, batch):
    (line,) = find_rows(f"moml/5.1/{name}")[1]
    experiment = row_searches(TABLES["5.1"], line, methods=["MOML"])[0].search.experiment
    assert (experiment.rounds, experiment.task.partition.train, experiment.algorithm.batch_size) == (
        tasks,
        train,
        batch,
    )


SECTION_6 = """
5.1 s-mnist TOE 71.22 63.73|5.1 s-mnist FS 71.15 71.14|5.1 s-mnist MOGD 74.63 74.07|5.1 s-mnist FTML 80.62 82.49
5.1 s-mnist MOML 85.82 87.49|5.1 cifar100-5way FS 31.58 31.60|5.1 cifar100-5way MOGD 49.92 50.21
5.1 cifar100-5way FTML 50.68 54.50|5.1 cifar100-5way MOML 55.83 60.78|5.1 miniimagenet-5way FS 20.90 20.81
5.1 miniimagenet-5way MOGD 49.08 56.86|5.1 miniimagenet-5way FTML 56.77 63.12|5.1 miniimagenet-5way B=10 56.23 64.27
5.2 cifar100-3way FTML 67.07 61.84|5.2 cifar100-3way MOML 69.10 72.15|5.2 cifar100-4way FTML 58.19 54.70
5.2 cifar100-4way MOML 60.85 62.79|5.2 cifar100-5way FTML 50.68 54.50|5.2 cifar100-5way MOML 55.83 60.78
5.3 s-mnist MOML 85.82 87.49|5.3 s-mnist B=5 84.21 87.54|5.3 s-mnist B=10 84.33 87.77
5.3 cifar100-5way MOML 55.83 60.78|5.3 cifar100-5way B=5 56.37 63.76|5.3 cifar100-5way B=10 56.70 65.24
5.4 s-mnist random B=5 83.30 86.09|5.4 s-mnist random B=10 84.07 86.97|5.4 s-mnist B=5 84.21 87.54
5.4 s-mnist B=10 84.33 87.77|5.4 cifar100-5way random B=5 56.40 64.37|5.4 cifar100-5way random B=10 55.07 64.37
5.4 cifar100-5way B=5 56.37 63.76|5.4 cifar100-5way B=10 56.70 65.24
A.8 cifar100-5way FTML 50.68 54.50|A.8 cifar100-5way MOML 55.83 60.78
A.8 cifar100-5way-5cnn FTML 54.90 62.92|A.8 cifar100-5way-5cnn MOML 56.17 64.72
A.9 cifar100-5way-disjoint MOGD 36.89 45.82|A.9 cifar100-5way-disjoint FTML 38.38 50.90
A.9 cifar100-5way-disjoint MOML 39.32 50.54|A.10 s-mnist MOML 85.82 87.49|A.10 s-mnist MOML-zero 84.09 86.53
A.10 cifar100-5way MOML 55.83 60.78|A.10 cifar100-5way MOML-zero 51.33 57.87
"""


def test_every_published_number_is_that_of_the_thesis():
    expected = {cell.rpartition(" ")[0].rpartition(" ")[0]: tuple(cell.split()[-2:])
                for row in SECTION_6.split("\n") for cell in row.split("|") if cell}  # fmt: skip
    found = {
        f"{name} {line.name} {method}": (line.published["ctm"][method], line.published["ltm"][method])
        for name, table in TABLES.items()
        for line in table.rows
        for method in line.published.get("ctm", {})
    }
    assert found == expected


def test_a_table_that_does_not_exist_is_refused():
    with pytest.raises(UserError, match=r"there is no such table; did you mean '5.1'"):
        find_rows("moml/5.11")


@pytest.mark.exhaustive("processes")
def test_a_line_runs_and_is_reported_again(ray_here, tmp_path):
    def hedgerow(*arguments: str) -> str:
        done = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    settings = (
        "rounds=4", "evaluation.every=2", "evaluation.efficiency={threshold: 0.9, points: [0, 60]}",
        "search.report_every=2", "tracking.enabled=false",
    )  # fmt: skip
    overrides = [part for setting in settings for part in ("--set", setting)]
    told = hedgerow("table", "moml/small/digits", "--methods", "fs,mogd", *overrides, "--output", str(tmp_path))
    table = json.loads((tmp_path / "tables" / "moml-small-digits" / "table.json").read_text())
    assert [line["method"] for line in table["lines"]] == ["FS", "MOGD"]
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
        for policy in ("sample", "leader"):
            chosen = [record["deployed"][policy]["expert"] for record in hedge]
            assert line["deployed"][policy]["ctm"] == pytest.approx(accuracies[range(len(hedge)), chosen].mean())
            assert line["deployed"][policy]["ltm"] == experts[chosen[-1]][-1]["ltm"]
        mixtures = [record["deployed"]["mixture"]["accuracy"] for record in hedge]
        assert line["deployed"]["mixture"] == {"ctm": pytest.approx(np.mean(mixtures)), "ltm": None}
        assert line["regret"] == pytest.approx((weights * (1 - accuracies)).sum() - (1 - accuracies).sum(0).min())
        points = np.array([[record["efficiency_points"] for record in records] for records in experts]).T
        assert line["points"] == pytest.approx(weights[-1] @ points[-1])
        assert len(line["changed"]) == 4
    assert "leader: " in told
    again = hedgerow("table", "moml/small/digits", "--report", "--output", str(tmp_path))
    assert again == told[told.index("moml/small:") :]


def test_a_grid_option_is_refused(tmp_path):
    done = CliRunner().invoke(main, ["table", "moml/5.1/s-mnist", "--grid"])
    assert done.exit_code == 2
    assert "the experts of moml/5.1 already cover its published grids" in done.stderr
