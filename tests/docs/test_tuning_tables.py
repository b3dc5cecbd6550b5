"""The page about tuning has a table for every measured task, and names what was not measured."""

import json
import math
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
    for name, ranks in RESULTS["ranks"].items():
        value = name.partition(",")[0]
        entries = {name: task["budgets"][str(RESULTS["main"])] for name, task in RESULTS["tasks"].items()}
        complete = [name for name, entry in entries.items() if all(entry.get(m, {}).get(value) for m in ranks["ranks"])]
        assert ranks["tasks"] == complete
        assert ranks["blocks"] == sum(RESULTS["tasks"][name]["recordings"] for name in complete)


def test_no_method_spends_more_than_its_budget():
    for task in RESULTS["tasks"].values():
        for budget, methods in task["budgets"].items():
            assert all(spent <= float(budget) + 1e-4 for one in methods.values() for spent in one["spent"])


@pytest.fixture
def tasks(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import tuning_tasks

    yield tuning_tasks
    sys.modules.pop("tuning_tasks")


def test_every_recording_of_the_benchmark_is_a_valid_search(tasks, tmp_path):
    for name, task in tasks.TASKS.items():
        for one in (task, task.quick):
            plans = {part: tasks.plan_of(name, one, 0, part, str(tmp_path)) for part in one.parts}
            assert len(plans[tasks.PLAIN].configurations) == math.prod(map(len, one.space.values()))
            if one.drawable:
                fixed = [values for key, values in one.space.items() if key not in one.drawable]
                assert len(plans[tasks.FEDEX].configurations) == math.prod(map(len, fixed))


def test_the_clients_of_a_run_of_fedex_draw_from_the_lists_of_the_grid(tasks, tmp_path):
    digits = tasks.TASKS["digits"]
    (one, other) = tasks.plan_of("digits", digits, 0, tasks.SERVER, str(tmp_path)).configurations
    assert [run["algorithm.epochs"] for run in (one, other)] == [1, 5]
    assert one["fedex.score"] == other["fedex.score"] == "server"
    assert one["fedex.factors"] == other["fedex.factors"]
    rates, strengths = one["fedex.factors"]
    assert [draw["algorithm.lr"] for draw in rates] == [0.01, 0.03, 0.1, 0.3, 1.0]
    assert [draw["algorithm.mu"] for draw in strengths] == [0.0, 0.01, 1.0]


def test_regret_by_rate_is_as_the_page_says(tuning):
    streams = json.loads((ROOT / "benchmarks" / "results" / "hedge_rates.json").read_text())["streams"]
    assert tuning("rates").count("\n") == 2 + len(streams["two alternate"])
    order = {name: sorted(found, key=lambda rate: math.fsum(found[rate])) for name, found in streams.items()}
    assert order["two alternate"][-1] == "leader"
    assert {"anytime", "adahedge", "tuned", "gamma 0.9"} == set(order["two alternate"][:4])
    assert order["the best one changes"][0] == order["one is better"][-1] == "fixed_share"
    assert "gamma 0.1" in order["one is better"][:3]
