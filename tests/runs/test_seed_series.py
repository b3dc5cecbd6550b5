"""Several seeds are runs of their own, summarised and compared as one experiment, and continued as one."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from ray_runs import numbers, same, small
from scipy.stats import t as student

import hedgerow
from hedgerow.cli import main
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.statistics import Estimate

SETTINGS = {"rounds": 2, "resources__executor": "inline", "algorithm": {"name": "fedavg", "batch_size": 8}}


@pytest.fixture(autouse=True)
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)


def test_an_estimate_is_the_interval_of_student():
    values = np.array([0.2, 0.5, 0.8, 0.4])
    found = Estimate.of(values)
    assert (found.low, found.high) == pytest.approx(
        student.interval(0.95, 3, values.mean(), values.std(ddof=1) / 2), abs=1e-12
    )
    assert found.mean == pytest.approx(values.mean())
    assert Estimate.of([0.5]) == Estimate.of([0.5, 0.5]) == Estimate(0.5)


def test_each_seed_is_a_run_and_all_are_summarised_together(tmp_path):
    series = hedgerow.run(small(tmp_path, **SETTINGS), seeds=[4, 2], show=False)
    assert series.seeds == [4, 2]
    assert [run.folder.name.rpartition("-")[2] for run in series.runs] == ["seed4", "seed2"]
    alone = hedgerow.run(small(tmp_path / "alone", **SETTINGS, seed=2), show=False)
    assert same(series.runs[1], alone)
    assert load_experiment(series.runs[1].folder.experiment) == alone.experiment.model_copy(
        update={"output": str(tmp_path)}
    )
    losses = [run.records[-1]["test_loss"] for run in series.runs]
    assert series.summary.loc["test_loss", "mean"] == pytest.approx(np.mean(losses))
    assert series.summary.loc["test_loss", "low"] == pytest.approx(Estimate.of(losses).low)
    assert series.frame.loc[(2, 1), "test_loss"] == alone.records[0]["test_loss"]
    accuracy, *_ = series.figure().axes
    (band,) = accuracy.patches
    middle = np.mean([[record["test_accuracy"] for record in run.records] for run in series.runs], axis=0)
    np.testing.assert_allclose(accuracy.lines[0].get_ydata(), middle)
    spread = np.std([[record["test_accuracy"] for record in run.records] for run in series.runs], axis=0, ddof=1)
    edges = band.get_xy()[:, 1]
    assert (edges.min(), edges.max()) == pytest.approx(((middle - spread).min(), (middle + spread).max()), abs=1e-9)


@pytest.mark.exhaustive("kills")
def test_an_interrupted_series_continues_with_the_seeds_that_are_missing(tmp_path):
    calm = hedgerow.run(small(tmp_path / "calm", **SETTINGS), seeds=[0, 1, 2], show=False)
    rounds = []

    def stop(record):
        rounds.append(record["round"])
        if len(rounds) == 3:
            raise RuntimeError("stopped in the first round of the second seed")

    with pytest.raises(RuntimeError, match="stopped"):
        hedgerow.run(small(tmp_path / "runs", **SETTINGS), seeds=[0, 1, 2], show=stop)
    first, second = sorted((tmp_path / "runs").glob("small-*"))
    assert json.loads((first / "run.json").read_text())["status"] == "finished"
    before = (first / "run.json").read_text()
    resumed = hedgerow.resume(first, show=False)
    assert [numbers(run) for run in resumed.runs] == [numbers(run) for run in calm.runs]
    assert (first / "run.json").read_text() == before
    assert [run.folder.path for run in resumed.runs[:2]] == [first, second]
    with pytest.raises(UserError, match=r"the runs of all seeds are finished: there is nothing to resume"):
        hedgerow.resume(second)


@pytest.mark.exhaustive("processes")
def test_experiments_with_seeds_are_compared_as_compare_does(tmp_path):
    files = []
    for name, rate in (("low", 0.05), ("high", 0.2)):
        values = small(tmp_path / "runs", **SETTINGS).model_dump(mode="json") | {"name": name}
        values["algorithm"]["lr"] = rate
        files.append(str(tmp_path / f"{name}.yaml"))
        Path(files[-1]).write_text(yaml.safe_dump(values))
    done = CliRunner().invoke(main, ["run", *files, "--seeds", "0,1", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert [(one["name"], one["seeds"]) for one in document["experiments"]] == [("low", [0, 1]), ("high", [0, 1])]
    scores = [run["summary"]["test_accuracy"] for run in document["runs"]]
    assert document["experiments"][1]["over_seeds"]["test_accuracy"]["mean"] == pytest.approx(np.mean(scores[2:]))
    folders = [run["folder"] for run in document["runs"]]
    compared = CliRunner().invoke(main, ["compare", *folders, "--json"])
    assert document["comparison"] == json.loads(compared.stdout)
    assert [group["seeds"] for group in document["comparison"]["groups"]] == [[0, 1], [0, 1]]
    assert all(Path(figure).exists() for figure in document["figures"])

    # Same name, and one seed: other folders, and a table without intervals.
    again = CliRunner().invoke(main, ["run", files[0], files[0], "--seeds", "3"])
    assert again.exit_code == 0, again.output
    assert "Over seeds" in again.stdout
    assert len(list((tmp_path / "runs").glob("low-*-seed3"))) == 2


def test_a_file_with_seeds_is_read_back_and_refused_by_searches(tmp_path):
    values = small(tmp_path).model_dump(mode="json")
    del values["seed"]
    series = parse_experiment(values | {"seeds": [5, 7]})
    assert series.seed == 5
    assert parse_experiment(series.model_dump(mode="json")) == series
    assert [(one.seed, one.seeds) for one in series.each_seed()] == [(5, None), (7, None)]
    (alone,) = small(tmp_path).each_seed()
    assert alone == small(tmp_path)
    search = {"kind": "grid", "space": {"algorithm.lr": [0.1]}, "metric": "validation_loss"}
    with pytest.raises(UserError, match=r"seeds: a search has one seed for all trials; set `seed`"):
        hedgerow.parse_search(series.model_dump(mode="json") | {"search": search})


@pytest.mark.parametrize("seeds", ["", "0,0", "a", "0,-1", "1.5"])
def test_seeds_on_the_command_line_are_different_whole_numbers(seeds, tmp_path):
    done = CliRunner().invoke(main, ["run", "file.yaml", "--seeds", seeds])
    assert done.exit_code == 2
    assert f"{seeds!r} is not a list of different whole numbers, such as 0,1,2" in done.output


def test_seeds_replace_the_seed_of_the_file_but_not_another_override(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(yaml.safe_dump(small(tmp_path).model_dump(mode="json")))
    assert load_experiment(file, ["seeds=[1, 2]"]).seeds == [1, 2]
    assert load_experiment(file, ["seeds=[1, 2]", "seeds=null", "seed=3"]).seed == 3
    with pytest.raises(UserError, match=r"give either `seed`, for one run, or `seeds`"):
        load_experiment(file, ["seeds=[1, 2]", "seed=3"])
