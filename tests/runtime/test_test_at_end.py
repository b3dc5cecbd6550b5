"""Test samples that are scored at the end of a run alone (`evaluation.test: end`)."""

import math

import pytest
from searches import plan

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import build_data
from hedgerow.platform.storage.checkpoint import checkpoints
from hedgerow.platform.tracking.summary import divergence_warnings, summarise


def settings(output, **changes) -> dict:
    values = {
        "name": "small",
        "rounds": 6,
        "clients_per_round": 0.5,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 12, "alpha": 0.5, "samples_per_client": 20},
            "model": {"name": "mlp", "hidden": [8]},
            "validation": {"fraction": 0.2},
        },
        "algorithm": {"name": "fedavg", "batch_size": 8},
        "engine": {"mode": "loop"},
        "evaluation": {"clients": 5, "every": 2},
        "checkpoints": {"every": 2, "keep": 3},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
        "output": str(output),
    }
    return values | {key: values.get(key, {}) | value for key, value in changes.items()}


def small(output, test: str, **changes) -> Experiment:
    values = settings(output, **changes)
    return parse_experiment(values | {"evaluation": values["evaluation"] | {"test": test}})


def scores_of(record: dict) -> dict:
    return {key: value for key, value in record.items() if {"test", "client"} & set(key.split("_"))}


@pytest.mark.parametrize("name", ["fedavg", "ditto", "scaffold"])
def test_all_other_numbers_are_those_of_a_run_that_scores_them_in_every_evaluation(tmp_path, name):
    task = settings(tmp_path)["task"]
    task |= {"partition": task["partition"] | {"client_test_fraction": 0.2}}
    every, end = (run(small(tmp_path, test, task=task, algorithm={"name": name})) for test in ("every", "end"))
    for one, other in zip(every.records, end.records, strict=True):
        scores = {} if one["round"] < 6 else scores_of(one)
        assert scores_of(other) == scores
        assert bool(scores_of(one)) == (one["round"] % 2 == 0)
        rest = {key: value for key, value in one.items() if key not in scores_of(one) and key != "seconds"}
        assert {key: value for key, value in other.items() if key not in scores and key != "seconds"} == rest
    assert end.summary["test_accuracy"] == every.summary["test_accuracy"]
    assert end.summary["validation_accuracy"] == every.summary["validation_accuracy"]


def test_a_run_that_ends_early_is_scored_in_its_last_round(tmp_path):
    patience = {"evaluation": {"every": 1, "patience": {"evaluations": 1, "min_delta": 1.0}}}
    every, end = (run(small(tmp_path, test, **patience)) for test in ("every", "end"))
    assert len(end.records) == len(every.records) == 2
    assert scores_of(end.records[0]) == {}
    assert scores_of(end.records[1]) == scores_of(every.records[1]) != {}


def test_the_scores_of_a_checkpoint_are_those_of_its_round(tmp_path):
    experiment = small(tmp_path, "every")
    finished = run(experiment)
    coordinator = build_coordinator([experiment], *build_data(experiment, None), [None])
    for folder in checkpoints(finished.folder.checkpoints):
        coordinator.load(0, folder)
        assert coordinator.test_scores() == scores_of(finished.records[coordinator.round - 1])
    assert coordinator.round == 6


@pytest.mark.parametrize(
    ("evaluation", "sentence"),
    [
        (
            {"targets": [0.5]},
            "`targets` need test_accuracy in every evaluation, .* set `test: every`, or",
        ),
        (
            {"patience": {"metric": "test_loss", "evaluations": 1}, "allow_test_selection": True},
            "`evaluation.patience.metric`: with `evaluation.test: end`, only the last evaluation has test_loss",
        ),
        ({"test": "never"}, "evaluation.test"),
    ],
)
def test_what_needs_every_score_is_refused(tmp_path, evaluation, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_experiment(settings(tmp_path, evaluation={"test": "end", **evaluation}))


def test_divergence_is_seen_in_the_validation_loss():
    rounds = [{"round": i, "validation_loss": loss, "train_loss": 1.0} for i, loss in enumerate([2.0, 30.0, 90.0], 1)]
    rounds[-1]["test_loss"] = 91.0
    assert divergence_warnings(rounds, 10) == [
        "the run diverged: its validation loss is 90 in round 3, after 2 in round 1; lower lr or set clip_norm"
    ]
    assert divergence_warnings(rounds[:1], 10) == []
    assert "is nan in round 1" in divergence_warnings([{"round": 1, "validation_loss": math.nan}], 10)[0]


def test_the_summary_of_a_run_without_test_scores_has_its_validation_scores():
    record = {"round": 1, "seconds": 1.0, "transmissions": 1.0, "dropped": 0, "validation_accuracy": 0.5}
    record |= dict.fromkeys(("scalars_down", "scalars_up", "bytes_down", "bytes_up"), 1)
    summary = summarise([record, {key: value for key, value in record.items() if key[:4] != "vali"} | {"round": 2}], [])
    assert (summary["validation_accuracy"], summary["test_accuracy"]) == (0.5, None)


@pytest.mark.parametrize(
    ("changes", "evaluation"),
    [
        ({}, {"test": "end", "target_metric": "validation_accuracy"}),
        ({"evaluation": {"targets": [0.5]}}, {"test": "end", "target_metric": "validation_accuracy"}),
        ({"evaluation": {"targets": [0.5], "target_metric": "test_accuracy"}}, {"test": "every"}),
        ({"evaluation": {"test": "every", "targets": [0.5]}}, {"test": "every", "target_metric": "test_accuracy"}),
        ({"search__record": "all"}, {"test": "every"}),
        ({"search__metric": "test_accuracy", "search__allow_test_selection": True}, {"test": "every"}),
    ],
)
def test_the_trials_of_a_search_are_tested_at_their_end_unless_its_file_needs_more(tmp_path, changes, evaluation):
    spec = plan(tmp_path, **({"evaluation": {}} | changes))
    found = spec.trial(spec.configurations[0]).evaluation
    assert {key: getattr(found, key) for key in evaluation} == evaluation
    assert spec.experiment.evaluation == found


def test_a_search_by_test_samples_that_are_scored_at_the_end_is_refused(tmp_path):
    with pytest.raises(UserError, match="with `end`, only the last evaluation has test_accuracy, which selects"):
        plan(tmp_path, evaluation={"test": "end"}, search__metric="test_accuracy", search__allow_test_selection=True)
