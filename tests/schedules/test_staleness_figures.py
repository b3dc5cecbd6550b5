"""Figures of asynchronous runs: accuracy against simulated seconds, and staleness."""

from ray_runs import small

from hedgerow.platform.runs.runner import run
from hedgerow.platform.runs.seed_groups import group_by_seed
from hedgerow.platform.ui.series import axes_of, curve, staleness_counts
from hedgerow.reports.sections.curves import curves
from hedgerow.reports.sections.report_data import read_all


def record(round: int, **values) -> dict:
    return {"round": round, "scalars_down": 1, "scalars_up": 1, "test_accuracy": 0.1 * round, **values}


def test_points_against_simulated_seconds():
    timed = [record(1, simulated_seconds=1.5), record(2, simulated_seconds=4.0)]
    assert curve(timed, "test_accuracy", "time") == {1: (1.5, 0.1), 2: (4.0, 0.2)}
    assert curve([record(1)], "test_accuracy", "time") == {}
    assert axes_of([[record(1)], timed]) == ["round", "traffic", "time"]
    assert axes_of([[record(1)]]) == ["round", "traffic"]


def test_updates_by_staleness():
    records = [record(1, staleness_count_0=3), record(2, staleness_count_0=1, staleness_count_2=2)]
    assert staleness_counts(records) == [4, 0, 2]
    assert staleness_counts([record(1)]) == []


def test_an_asynchronous_run_draws_its_staleness(tmp_path):
    finished = run(
        small(
            tmp_path,
            algorithm={"name": "fedavg", "batch_size": 8},
            schedule={"kind": "fedbuff", "buffer": 2},
            simulation={"speed": {"kind": "lognormal"}},
            resources__executor="inline",
        )
    )
    figures = {file.name for file in finished.folder.figures.iterdir()}
    assert {"staleness.png", "curves_by_time.svg"} <= figures
    assert sum(staleness_counts(list(finished.records))) == 4 * 2
    groups, _ = group_by_seed(read_all([str(finished.folder.path)]).runs)
    titles = [chart.title for chart in curves(groups)]
    assert "Test accuracy by simulated seconds" in titles
    assert any(title.startswith("Staleness of updates") for title in titles)
