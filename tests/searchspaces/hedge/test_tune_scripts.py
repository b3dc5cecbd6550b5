"""HedgeScheduler in scripts of Ray Tune's users: any searcher, any trainable, any keys."""

import json
import math
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import trainables
from ray import tune
from ray.tune.error import TuneError
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.optuna import OptunaSearch
from reservations import free_reservations
from trainables import Scripted, loss_of

from hedgerow.platform.common.errors import UserError
from hedgerow.searchspaces.hedge.scheduler import JOURNAL, HedgeHooks, HedgeScheduler, TrialRules
from hedgerow.searchspaces.hedge.weight_callback import HedgeCallback
from hedgerow.searchspaces.hedge.weights import Hedge
from hedgerow.searchspaces.tune.search_runner import TUNE_SETTINGS

# The workers cannot import the tests' modules.
ray.cloudpickle.register_pickle_by_value(trainables)
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROUNDS = 6


@pytest.fixture(autouse=True)
def tunes_own_settings(monkeypatch, every_cpu):
    """Without settings of a search of Hedgerow's own in this process."""
    for name in TUNE_SETTINGS:
        monkeypatch.delenv(name, raising=False)


def height(config: dict[str, Any], step: int) -> float:
    """Loss in [0, 1] of a configuration with `number`."""
    return (config["number"] * (step + 1)) % 1.0


def report_heights(config: dict[str, Any]) -> None:
    for step in range(ROUNDS):
        loss = height(config, step)
        tune.report({"loss": loss, "reward": -10 * loss, "round": 7, "expert": 99, "records": "none"})


def fit(
    folder: Path, trainable: Any, space: dict[str, Any], scheduler: HedgeScheduler, cpus: float = 1, **settings: Any
) -> tune.ResultGrid:
    run = settings.pop("run", {})
    tuner = tune.Tuner(
        tune.with_resources(trainable, {"cpu": cpus}),
        param_space=space,
        tune_config=tune.TuneConfig(scheduler=scheduler, **settings),
        run_config=tune.RunConfig(name="tune", storage_path=str(folder), verbose=0, **run),
    )
    return tuner.fit()


def closed_form(losses: np.ndarray, gamma: float = 0.1) -> np.ndarray:
    """Hedge's weights gamma^L / sum gamma^L of losses (rounds, experts)."""
    powers = gamma ** (losses.sum(0) - losses.sum(0).min())
    return powers / powers.sum()


def has_closed_form(results: tune.ResultGrid) -> None:
    """The weights are those of all results, by the identifiers of the trials."""
    standing = HedgeScheduler.read(results.experiment_path)
    configs = {result.metrics["trial_id"]: result.config for result in results}
    losses = np.array([[height(config, step) for config in configs.values()] for step in range(ROUNDS)])
    assert standing.round == ROUNDS
    assert [standing.weights[name] for name in configs] == pytest.approx(closed_form(losses), abs=1e-12)
    assert standing.winner == list(configs)[losses.sum(0).argmin()]
    weights = np.array([closed_form(losses[:step]) for step in range(ROUNDS)])
    assert standing.regret == pytest.approx((weights * losses).sum() - losses.sum(0).min())


def test_optuna_and_a_function_with_metric_and_mode_of_the_configuration_and_keys_of_its_own(tmp_path):
    scheduler = HedgeScheduler(range=(0, 1))
    results = fit(
        tmp_path,
        report_heights,
        {"number": tune.uniform(0, 1), "pack": tune.choice([3]), "overrides": "none"},
        scheduler,
        metric="loss",
        mode="min",
        search_alg=OptunaSearch(seed=1),
        num_samples=3,
        run={"callbacks": [HedgeCallback(scheduler)]},
    )
    assert not results.errors
    has_closed_form(results)
    files = [Path(result.path, "result.json").read_text() for result in results]
    logged = [json.loads(line) for text in files for line in text.splitlines()]
    assert len(logged) == 3 * ROUNDS
    assert all(one["hedge/weight"] != one["hedge/weight"] or 0 < one["hedge/weight"] < 1 for one in logged)
    assert any(one["hedge/regret"] > 0 for one in logged)


@pytest.mark.exhaustive("processes")
def test_trials_that_come_later_run_to_their_end_and_rewards_have_a_range(tmp_path, caplog):
    scheduler = HedgeScheduler(metric="reward", mode="max", range=(-10, 0), experts=5)
    space = {"number": tune.grid_search([0.3, 0.45, 0.71])}
    results = fit(tmp_path, report_heights, space, scheduler, max_concurrent_trials=1, reuse_actors=True)
    assert not results.errors
    has_closed_form(results)
    assert "HedgeScheduler(experts=5): there are 3 trials" in caplog.text


@pytest.mark.exhaustive("processes")
def test_a_searcher_that_finishes_early_has_as_many_experts_as_it_proposed(tmp_path, caplog):
    class Short(BasicVariantGenerator):
        @property
        def total_samples(self):
            return super().total_samples + 1

    scheduler = HedgeScheduler(metric="loss", mode="min", range=(0, 1))
    results = fit(tmp_path, report_heights, {"number": tune.grid_search([0.3, 0.71])}, scheduler, search_alg=Short())
    has_closed_form(results)
    assert "there are 2 trials instead of 3" in caplog.text


def test_a_function_that_is_paused_without_a_checkpoint_repeats_its_steps_and_says_so_once(tmp_path):
    warnings: list[str] = []
    hooks, rules = HedgeHooks(warn=warnings.append), TrialRules(ahead=2)
    scheduler = HedgeScheduler(metric="loss", mode="min", range=(0, 1), rules=rules, hooks=hooks)
    space = {"number": tune.grid_search([0.3, 0.71])}
    results = fit(tmp_path, report_heights, space, scheduler, cpus=4, reuse_actors=True)
    has_closed_form(results)
    (sentence,) = warnings
    assert "they repeat their steps from the first one" in sentence


class Forgetful(tune.Trainable):
    """Has no save_checkpoint. config: {"log": file to which each process writes a line}."""

    def setup(self, config: dict[str, Any]) -> None:
        with Path(config["log"]).open("a") as file:
            file.write(f"{os.getpid()}\n")

    def step(self) -> dict[str, Any]:
        return {"loss": 0.5, "done": self.iteration == ROUNDS - 1}


def test_a_class_without_checkpoints_is_refused_before_its_first_pause(tmp_path):
    scheduler = HedgeScheduler(metric="loss", mode="min", rules=TrialRules(ahead=2))
    space = {"log": str(tmp_path / "log"), "number": tune.grid_search([1, 2])}
    with pytest.raises(UserError, match="Forgetful has no save_checkpoint; add save_checkpoint and load_checkpoint"):
        fit(tmp_path, Forgetful, space, scheduler, cpus=4)
    free_reservations()


@pytest.mark.exhaustive("processes")
def test_lock_step_with_room_for_all_starts_each_process_once(tmp_path):
    scheduler = HedgeScheduler(metric="loss", mode="min", rules=TrialRules(ahead=0))
    space = {"log": str(tmp_path / "log"), "number": tune.grid_search([1, 2, 3])}
    run = {"checkpoint_config": tune.CheckpointConfig(checkpoint_at_end=False)}
    results = fit(tmp_path, Forgetful, space, scheduler, run=run)
    assert not results.errors
    assert len((tmp_path / "log").read_text().split()) == 3
    assert list(HedgeScheduler.read(results.experiment_path).weights.values()) == [1 / 3] * 3


def fall_short(config: dict[str, Any]) -> None:
    """The best one fails in its last round; another one reports NaN."""
    for step in range(ROUNDS):
        if config["number"] == 0 and step == ROUNDS - 1:
            raise RuntimeError("this trial is broken")
        tune.report({"loss": math.nan if config["number"] == 2 else 0.1 * (1 + config["number"])})


def test_a_trial_that_failed_never_wins_and_nan_is_the_worst_loss(tmp_path):
    rule = partial(Hedge, gamma=0.5)
    scheduler = HedgeScheduler(metric="loss", mode="min", range=(0, 1), hedge=rule)
    results = fit(tmp_path, fall_short, {"number": tune.grid_search([0, 1, 2])}, scheduler)
    assert len(results.errors) == 1
    standing = HedgeScheduler.read(results.experiment_path)
    names = {result.config["number"]: result.metrics["trial_id"] for result in results}
    losses = np.array([[0.1, 0.2, 1.0]] * (ROUNDS - 1) + [[1.0, 0.2, 1.0]])
    assert [standing.weights[names[number]] for number in range(3)] == pytest.approx(closed_form(losses, 0.5))
    assert standing.failed == {names[0]}
    assert standing.winner == names[1]


@pytest.mark.exhaustive("processes")
def test_a_search_that_ends_before_its_first_complete_round_has_no_weights(tmp_path, caplog):
    def first_only(config: dict[str, Any]) -> None:
        if config["number"]:
            tune.report({"loss": 0.5})
        while True:
            pass

    scheduler = HedgeScheduler(metric="loss", mode="min")
    space, run = {"number": tune.grid_search([0, 1])}, {"callbacks": [HedgeCallback(scheduler)]}
    fit(tmp_path, first_only, space, scheduler, time_budget_s=5, run=run)
    assert "no round is complete: not all 2 trials have reported the metric" in caplog.text
    with pytest.raises(UserError, match="no round is complete"):
        HedgeScheduler.read(tmp_path / "tune")


class Crash(tune.Callback):
    """Ends the search by an error after some results: Tune writes no snapshot, as after a kill."""

    def __init__(self, armed: Path, after: int):
        self.armed, self.after = armed, after

    def on_trial_result(self, **info: Any) -> None:
        self.after -= 1
        if self.after <= 0 and self.armed.exists():
            self.armed.unlink()
            raise RuntimeError("interrupted")


def saving(config: dict[str, Any]) -> None:
    checkpoint = tune.get_checkpoint()
    first = 0
    if checkpoint:
        with checkpoint.as_directory() as folder:
            first = int((Path(folder) / "step").read_text())
    for step in range(first, ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "step").write_text(str(step + 1))
            tune.report({"loss": height(config, step)}, checkpoint=tune.Checkpoint.from_directory(folder))


@pytest.mark.exhaustive("processes")
def test_a_restored_search_of_a_searcher_keeps_the_numbers_of_its_trials(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    (armed := tmp_path / "armed").touch()
    scheduler = HedgeScheduler(metric="loss", mode="min", range=(0, 1), rules=TrialRules(ahead=2))
    callbacks = [HedgeCallback(scheduler), Crash(armed, 8)]
    search = OptunaSearch(metric="loss", mode="min", seed=2)
    space = {"number": tune.uniform(0, 1)}
    settings = {"search_alg": search, "num_samples": 3, "run": {"callbacks": callbacks}, "reuse_actors": True}
    with pytest.raises(TuneError, match="interrupted"):
        fit(tmp_path, saving, space, scheduler, cpus=2, **settings)
    free_reservations()
    tuner = tune.Tuner.restore(str(tmp_path / "tune"), tune.with_resources(saving, {"cpu": 2}))
    results = tuner.fit()
    assert not results.errors
    has_closed_form(results)
    # A trial that was paused after its last round has the result of its checkpoint.
    assert any("hedge/weight" in result.metrics for result in results)


class Snapshots(tune.Callback):
    """Keeps a copy of the snapshot that Tune has written of its first two trials."""

    def __init__(self, experiment: Path, copy: Path):
        self.experiment, self.copy = experiment, copy

    def on_trial_save(self, trials: list[Any], **info: Any) -> None:
        if len(trials) == 2:
            shutil.copytree(self.experiment, self.copy, dirs_exist_ok=True)


@pytest.mark.exhaustive("processes")
def test_a_trial_that_began_after_the_snapshot_of_a_restored_search_is_created_again_and_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_GLOBAL_CHECKPOINT_S", "0")
    (armed := tmp_path / "armed").touch()
    scheduler = HedgeScheduler(metric="loss", mode="min", range=(0, 1), rules=TrialRules(ahead=2))
    # The third trial begins when the first one has ended.
    callbacks = [Snapshots(tmp_path / "tune", tmp_path / "copy"), Crash(armed, 2 * ROUNDS + 3)]
    space = {"number": tune.grid_search([0.1, 0.35, 0.6])}
    with pytest.raises(TuneError, match="interrupted"):
        fit(tmp_path, saving, space, scheduler, cpus=2, max_concurrent_trials=2, run={"callbacks": callbacks})
    free_reservations()
    journal = (tmp_path / "tune" / JOURNAL).read_text()
    shutil.rmtree(tmp_path / "tune")
    shutil.move(tmp_path / "copy", tmp_path / "tune")
    (tmp_path / "tune" / JOURNAL).write_text(journal)
    trainable = tune.with_resources(saving, {"cpu": 2})
    results = tune.Tuner.restore(str(tmp_path / "tune"), trainable, param_space=space).fit()
    assert len(results) == 3
    assert not results.errors
    has_closed_form(results)


@pytest.mark.parametrize(
    ("settings", "options", "sentence"),
    [
        ({}, {"metric": "loss"}, "HedgeScheduler has no mode; set it here or in tune.TuneConfig"),
        ({}, {"mode": "min"}, "HedgeScheduler has no metric; set it here or in tune.TuneConfig"),
        ({"num_samples": -1}, {"metric": "loss", "mode": "min"}, "set num_samples of tune.TuneConfig to it instead of"),
        ({}, {"metric": "loss", "mode": "min", "hedge": Hedge}, "this rule needs the range of the metric"),
        (
            {"num_samples": 2, "max_concurrent_trials": 1},
            {"metric": "loss", "mode": "min", "rules": TrialRules(ahead=0)},
            "in lock-step, all 2 trials begin together, but only 1 were created; remove max_concurrent_trials",
        ),
    ],
)
def test_mistakes_end_before_any_work_in_one_sentence(tmp_path, settings, options, sentence):
    with pytest.raises(UserError, match=sentence):
        fit(tmp_path, report_heights, {"number": 0.5}, HedgeScheduler(**options), **settings)


def test_rounds_that_are_no_whole_numbers_end_the_search(tmp_path):
    scheduler = HedgeScheduler("reward", metric="loss", mode="min")
    with pytest.raises(TuneError, match="set time_attr to a result that counts rounds in whole numbers from 1"):
        fit(tmp_path, report_heights, {"number": 0.3}, scheduler)
    free_reservations()


@pytest.mark.exhaustive("processes")
def test_scripted_classes_take_turns_as_well(tmp_path):
    scheduler = HedgeScheduler(metric="loss", mode="min", range=(0, 1), rules=TrialRules(ahead=2))
    configs = [{"expert": expert, "rounds": ROUNDS, "log": str(tmp_path / "log")} for expert in range(3)]
    space = {"script": tune.grid_search(configs)}
    results = fit(tmp_path, Scripted, space, scheduler, cpus=4, reuse_actors=True)
    standing = HedgeScheduler.read(results.experiment_path)
    losses = np.array([[loss_of(expert, round) for expert in range(3)] for round in range(1, ROUNDS + 1)])
    names = [result.metrics["trial_id"] for result in results]
    assert [standing.weights[name] for name in names] == pytest.approx(closed_form(losses), abs=1e-12)
