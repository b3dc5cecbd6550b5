"""The page about tuning has a table for every measured task, and names what was not measured."""

import json
import sys

import pytest
from paths import ROOT

PAGE = (ROOT / "docs" / "tuning-benchmark.md").read_text()
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "tuning.json").read_text())


@pytest.fixture
def tuning(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    from tuning_tables import tuning

    yield tuning
    sys.modules.pop("tuning_tables")


def test_every_measured_task_has_a_table_on_the_page(tuning):
    for name, task in RESULTS["tasks"].items():
        assert f"::: tuning {name}\n" in PAGE
        table, methods = tuning(name), task["budgets"][str(RESULTS["main"])]
        assert table.count("\n") == 2 + len(methods)
        assert all(f"| {method} |" in table for method in methods)
        assert task["title"] in tuning("tasks")


def test_the_page_says_on_which_tasks_each_method_was_measured(tuning):
    lines = {line.split(" | ")[0].removeprefix("| "): line for line in tuning("methods").splitlines()[2:]}
    assert lines.keys() == RESULTS["methods"].keys()
    for method, line in lines.items():
        where = [name for name, task in RESULTS["tasks"].items() if method in task["budgets"][str(RESULTS["main"])]]
        assert line.endswith(f" | {'all' if len(where) == len(RESULTS['tasks']) else ', '.join(where)} |")


def test_ranks_are_over_the_tasks_on_which_every_method_was_measured():
    for value, ranks in RESULTS["ranks"].items():
        entries = {name: task["budgets"][str(RESULTS["main"])] for name, task in RESULTS["tasks"].items()}
        complete = [name for name, entry in entries.items() if all(entry.get(m, {}).get(value) for m in ranks["ranks"])]
        assert ranks["tasks"] == complete
        assert ranks["blocks"] == sum(RESULTS["tasks"][name]["recordings"] for name in complete)


def test_no_method_spends_more_than_its_budget():
    for task in RESULTS["tasks"].values():
        for budget, methods in task["budgets"].items():
            assert all(spent <= float(budget) + 1e-4 for one in methods.values() for spent in one["spent"])
