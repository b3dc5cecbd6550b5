"""Optuna's study as a searcher of Tune: its proposals, its reports, and the trials that its pruner stops."""

from math import nan
from pathlib import Path

import optuna
import pytest
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from searches import ROUNDS, plan

from hedgerow.platform.common.errors import UserError
from hedgerow.searchspaces.spaces.search_section import SearchSetup
from hedgerow.searchspaces.tune.kinds.optuna_study import PruningScheduler, StudySearcher

SPACE = {
    "algorithm.lr": {"loguniform": [0.01, 0.5]},
    "algorithm.momentum": {"choice": [0.0, 0.5]},
    "algorithm.epochs": {"integers": [1, 3]},
    # The file does not say `lr_decay`, whose default is 1.
    "algorithm.pull": {"uniform": [0.0, 0.2], "when": {"algorithm.momentum": 0.5, "algorithm.lr_decay": 1.0}},
}


def build(folder: Path, known=(), run: str = "run", **settings):
    """The searcher and the scheduler of a search in a run folder; known: the configurations that it has tried."""
    spec = plan(folder, search={"kind": "optuna", "samples": 6, "space": SPACE, **settings})
    journal = folder / run / "losses.jsonl"
    setup = SearchSetup(spec.experiment, spec.values, list(known), journal, lambda record: None, print)
    return spec.search.build(setup)


def proposed(searcher: StudySearcher, count: int, names: str = "abcdefgh") -> list[dict]:
    return [searcher.suggest(name) for name in names[:count]]


def finish(searcher: StudySearcher, name: str, *accuracies: float) -> None:
    for round, accuracy in enumerate(accuracies, 1):
        searcher.on_trial_result(name, {"round": round, "validation_accuracy": accuracy})
    searcher.on_trial_complete(name, {"round": len(accuracies), "validation_accuracy": accuracies[-1]})


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_a_sampler_proposes_values_of_the_space_the_same_for_the_same_seed(tmp_path, sampler):
    first, second = (build(tmp_path / name, sampler=sampler)[0] for name in "xy")
    found = proposed(first, 4)
    assert found == proposed(second, 4)
    for number, one in enumerate(found):
        overrides = one["overrides"]
        assert one["number"] == number
        assert 0.01 <= overrides["algorithm.lr"] <= 0.5
        assert overrides["algorithm.epochs"] in (1, 2, 3)
        assert ("algorithm.pull" in overrides) == (overrides["algorithm.momentum"] == 0.5)
    assert len({one["overrides"]["algorithm.lr"] for one in found}) == 4


@pytest.mark.parametrize("storage", [None, "sqlite:///{}/study.db"], ids=["memory", "database"])
@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
@pytest.mark.grid
def test_a_search_that_goes_on_proposes_the_values_of_an_undisturbed_one(tmp_path, sampler, storage):
    def propose(searcher: StudySearcher, names: str) -> list[dict]:
        """Proposals one after the other, each with the result of the one before; 12, since the first 10 are random."""
        found = []
        for name in names:
            found.append(searcher.suggest(name)["overrides"])
            finish(searcher, name, *[found[-1]["algorithm.lr"]] * ROUNDS)
        return found

    def made(name: str, known=()) -> StudySearcher:
        where = None if storage is None else storage.format(tmp_path / name)
        (tmp_path / name).mkdir(exist_ok=True)
        return build(tmp_path / name, known=known, sampler=sampler, storage=where)[0]

    whole = propose(made("calm"), "abcdefghijkl")
    assert len({one["algorithm.lr"] for one in whole[:10]}) == 10
    for cut in (1, 6, 11):
        begun = propose(made(f"cut{cut}"), "abcdefghijkl"[:cut])
        assert propose(made(f"cut{cut}", known=begun), "abcdefghijkl") == whole


def test_a_further_search_in_the_same_study_proposes_other_values(tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    both = [proposed(build(tmp_path, run=run, storage=storage)[0], 3) for run in ("run", "other")]
    assert len({one["overrides"]["algorithm.lr"] for found in both for one in found}) == 6


def test_without_a_pruner_no_scheduler_stops_a_trial(tmp_path):
    searcher, scheduler = build(tmp_path)
    assert scheduler is None
    proposed(searcher, 2)
    finish(searcher, "a", 0.2, 0.4)
    searcher.on_trial_complete("b", error=True)
    assert [(one.state.name, one.value) for one in searcher.study.trials] == [("COMPLETE", 0.4), ("FAIL", None)]


def test_the_median_pruner_stops_a_trial_that_is_below_the_median_after_its_grace(tmp_path):
    searcher, scheduler = build(tmp_path, pruner="median", grace=2)
    assert isinstance(scheduler, PruningScheduler)
    proposed(searcher, 7)
    for name, accuracy in zip("abcde", (0.1, 0.2, 0.3, 0.4, 0.5), strict=True):
        finish(searcher, name, *[accuracy] * ROUNDS)

    def decision(name: str, round: int, accuracy: float) -> str:
        trial = Trial("t", trial_id=name, stub=True)
        return scheduler.on_trial_result(None, trial, {"round": round, "validation_accuracy": accuracy})

    # The median is 0.3. Rounds before the metric is known are not reported.
    assert scheduler.on_trial_result(None, Trial("t", trial_id="f", stub=True), {"round": 1}) == TrialScheduler.CONTINUE
    assert decision("f", 1, 0.25) == TrialScheduler.CONTINUE
    assert decision("f", 2, 0.29) == TrialScheduler.STOP
    assert decision("g", 2, 0.31) == TrialScheduler.CONTINUE
    searcher.on_trial_complete("f", {"round": 2, "validation_accuracy": 0.29})
    last = searcher.study.trials[5]
    assert (last.state.name, last.value, last.intermediate_values) == ("PRUNED", 0.29, {1: 0.25, 2: 0.29})


@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_pruner_stops_a_trial_whose_values_are_nan(tmp_path, pruner):
    searcher, scheduler = build(tmp_path, pruner=pruner, grace=2)
    proposed(searcher, 6)
    for name in "abcde":
        finish(searcher, name, *[0.3] * ROUNDS)
    found = [
        scheduler.on_trial_result(None, Trial("t", trial_id="f", stub=True), {"round": n, "validation_accuracy": nan})
        for n in (1, 2)
    ]
    assert found == [TrialScheduler.CONTINUE, TrialScheduler.STOP]


def test_a_stored_study_continues_with_the_same_trials(tmp_path):
    storage = {"storage": f"sqlite:///{tmp_path / 'study.db'}", "pruner": "median"}
    first, _ = build(tmp_path, **storage)
    tried = [one["overrides"] for one in proposed(first, 3)]
    finish(first, "a", *[0.5] * ROUNDS)
    first.on_trial_result("b", {"round": 1, "validation_accuracy": 0.3})
    # The process ends here. Its trials report all their rounds again.
    again, _ = build(tmp_path, known=tried, **storage)
    found = [one["overrides"] for one in proposed(again, 4)]
    assert found[:3] == tried
    assert found[3]["algorithm.lr"] not in [one["algorithm.lr"] for one in tried]
    finish(again, "a", *[0.5] * ROUNDS)
    finish(again, "b", 0.3, 0.4)
    states = [(one.state.name, one.value, len(one.intermediate_values)) for one in again.study.trials]
    assert states == [("COMPLETE", 0.5, ROUNDS), ("PRUNED", 0.4, 2), ("RUNNING", None, 0), ("RUNNING", None, 0)]
    # Another search in the same study has trials of its own, and numbers of its own.
    other, _ = build(tmp_path, run="other", **storage)
    assert [one["number"] for one in proposed(other, 2)] == [0, 1]
    assert len(other.study.trials) == 6


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"metric": "validation_loss"},
            "the study 'small' exists and its direction is maximize, but `mode: min` needs minim",
        ),
        ({"space": {"algorithm.momentum": [0.0, 0.9]}}, "the study 'small' has other choices for algorithm.momentum"),
        ({"space": {"algorithm.lr": [0.1, 0.9]}}, "the study 'small' has other choices for algorithm.lr"),
        ({"storage": "nosuch://host/study"}, r"cannot open the study \(.*\); check the URL"),
    ],
)
def test_a_study_that_does_not_fit_is_one_sentence(tmp_path, settings, sentence):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    proposed(build(tmp_path, storage=storage)[0], 1)
    with pytest.raises(UserError, match=f"search.storage: {sentence}"):
        build(tmp_path, **{"storage": storage, **settings})


def test_a_storage_is_a_url(tmp_path):
    with pytest.raises(
        UserError, match=r"search.storage: 'study.db' is not the URL of a database; write it as in sqlite:///"
    ):
        build(tmp_path, storage="study.db")


def test_a_study_in_a_database_has_the_parameters_by_their_keys(tmp_path):
    storage = f"sqlite:///{tmp_path / 'study.db'}"
    (one,) = proposed(build(tmp_path, storage=storage)[0], 1)
    assert optuna.load_study(study_name="small", storage=storage).trials[0].params == one["overrides"]
