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
        table = tuning(name)
        assert table.count("\n") == 2 + len(RESULTS["methods"])
        assert all(f"| {method} |" in table for method in RESULTS["methods"])
        assert task["title"] in tuning("tasks")


def test_methods_without_a_result_are_named_as_such(tuning):
    assert "BOHB" not in RESULTS["methods"]
    assert "BOHB is part of the script, but\nwas not run" in PAGE
    assert "FedEx" not in tuning("methods")


def test_no_method_spends_more_than_its_budget():
    for task in RESULTS["tasks"].values():
        for budget, methods in task["budgets"].items():
            assert all(spent <= float(budget) + 1e-4 for one in methods.values() for spent in one["spent"])
