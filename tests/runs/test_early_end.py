"""The best round is kept, and a run ends when it no longer improves: by its records, also after an interruption."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from ray_runs import numbers, same, small

import hedgerow
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.runs import runner
from hedgerow.platform.runtime.factory import build_data
from hedgerow.platform.storage.checkpoint import checkpoints, round_of
from hedgerow.platform.tracking.decisions import BestRound

SETTINGS = {
    "rounds": 16,
    "algorithm": {"name": "fedavg", "lr": 0.3, "batch_size": 4, "epochs": 3},
    "task__validation": {"fraction": 0.3},
    "task__partition": {"kind": "iid", "clients": 12, "samples_per_client": 20},
    "resources__executor": "inline",
    "checkpoints__every": 5,
    "checkpoints__keep": 1,
}


@pytest.fixture(autouse=True)
def each_round(monkeypatch):
    """The driver hears of every round by itself."""
    monkeypatch.setattr(runner, "ADVANCE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A run of all rounds."""
    return hedgerow.run(small(tmp_path_factory.mktemp("full"), **SETTINGS), show=False)


def interrupted(experiment, at):
    """The run of an experiment that fails after a round, resumed."""

    def stop(record):
        if record["round"] == at:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        hedgerow.run(experiment, show=stop)
    (folder,) = Path(experiment.output).glob("small-*")
    return hedgerow.resume(folder, show=False)


def evaluated(run, metric):
    return {record["round"]: record[metric] for record in run.records if metric in record}


def expected_end(values, evaluations, min_delta, sign):
    """Round after which patience ends a run: no later value within `evaluations` is better than the best one."""
    best, best_index = -math.inf, -1
    for i, (round, value) in enumerate(values.items()):
        if sign * value > best + min_delta:
            best, best_index = sign * value, i
        elif i - best_index >= evaluations:
            return round
    return None


@pytest.mark.parametrize("metric", ["validation_accuracy", "validation_loss"])
@pytest.mark.grid(keep=1)
def test_the_best_round_is_the_first_best_of_the_records_and_has_a_checkpoint(metric, full, tmp_path):
    run = hedgerow.run(small(tmp_path, **SETTINGS, checkpoints__best=metric), show=False)
    assert numbers(run) == numbers(full)
    values = evaluated(run, metric)
    choose = np.argmin if metric.endswith("loss") else np.argmax
    best = list(values)[int(choose(list(values.values())))]
    assert run.best_round == best < 16, "the best round is to be an earlier one"
    kept = [round_of(file) for file in checkpoints(run.folder.checkpoints)]
    assert kept == [best, 16]

    loaded, dataset = hedgerow.load(run.folder.path), build_data(run.experiment, None)[0]
    hits = loaded.predict(dataset.x_test, "best").argmax(1) == dataset.y_test
    assert hits.mean() == run.records[best - 1]["test_accuracy"]


def test_an_interrupted_run_keeps_the_same_best_round(full, tmp_path):
    experiment = small(tmp_path, **SETTINGS, checkpoints__best="validation_loss")
    run = interrupted(experiment, 12)
    assert same(run, full)
    values = evaluated(full, "validation_loss")
    assert run.best_round == min(values, key=values.__getitem__)
    assert [round_of(file) for file in checkpoints(run.folder.checkpoints)] == [run.best_round, 16]


RULES = [("validation_accuracy", 3, 0.0), ("validation_loss", 2, 0.01)]


@pytest.mark.parametrize(("metric", "evaluations", "min_delta"), RULES)
def test_patience_ends_a_run_where_the_records_of_a_full_run_say(metric, evaluations, min_delta, full, tmp_path):
    patience = {"metric": metric, "evaluations": evaluations, "min_delta": min_delta}
    sign = -1 if metric.endswith("loss") else 1
    end = expected_end(evaluated(full, metric), evaluations, min_delta, sign)
    assert end is not None
    assert end < 16, "the run is to end early"
    run = hedgerow.run(small(tmp_path, **SETTINGS, evaluation__patience=patience), show=False)
    assert numbers(run) == numbers(full)[:end]
    assert run.status == "finished"
    assert [round_of(file) for file in checkpoints(run.folder.checkpoints)] == [end]
    (reason,) = {run.ended, json.loads((run.folder.path / "run.json").read_text())["ended"]}
    assert reason.startswith(f"{metric} has not improved for {evaluations} evaluation")
    assert full.ended is None

    resumed = interrupted(small(tmp_path / "interrupted", **SETTINGS, evaluation__patience=patience), end - 1)
    assert same(resumed, run)
    assert resumed.ended == reason


def test_a_metric_that_is_never_a_number_never_improves():
    best = BestRound("test_loss", records=[{"round": n, "test_loss": math.nan} for n in (1, 2)])
    assert (best.round, best.since) == (None, 2)
    assert best.keep_checkpoint({"round": 3, "test_loss": 1.0})
    assert not best.keep_checkpoint({"round": 4})
    assert not best.keep_checkpoint({"round": 5, "test_loss": 1.0})
    assert (best.round, best.since) == (3, 1)


def test_test_samples_select_only_with_consent_and_the_result_says_so(tmp_path):
    choices = {
        "checkpoints__best": "test_accuracy",
        "evaluation__patience": {"metric": "client_loss", "evaluations": 2},
    }
    for key, value in choices.items():
        settings = {**SETTINGS, key: value}
        with pytest.raises(UserError, match=r"selects by samples that only score the result; set it to validation_"):
            small(tmp_path, **settings)
        allowed = small(tmp_path, **{**settings, "rounds": 2, "evaluation__allow_test_selection": True})
        run = hedgerow.run(allowed, show=False)
        assert "test data took part in the selection (evaluation.allow_test_selection)" in run.warning
    with pytest.raises(UserError, match=r"allow_test_selection` has no effect without"):
        small(tmp_path, **SETTINGS, evaluation__allow_test_selection=True)


def test_a_metric_that_the_algorithm_does_not_report_ends_the_run_at_its_first_evaluation(tmp_path):
    experiment = small(tmp_path, **SETTINGS, checkpoints__best="teacher_validation_loss")
    with pytest.raises(UserError, match=r"checkpoints.best: this run does not report teacher_validation_loss"):
        hedgerow.run(experiment, show=False)


def test_an_experiment_with_patience_is_read_as_it_was_written(tmp_path):
    experiment = small(tmp_path, **SETTINGS, evaluation__patience={"metric": "validation_loss", "evaluations": 3})
    assert parse_experiment(experiment.model_dump(mode="json")) == experiment
    run = hedgerow.run(experiment, rounds=1, show=False)
    assert load_experiment(run.folder.experiment).evaluation.patience == experiment.evaluation.patience
