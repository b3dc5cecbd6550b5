"""Hedge on a stream: lock-step rounds, deployed policies, and the model that is deployed."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from processes import hedgerow
from searches import plan as federated_plan

from hedgerow import load
from hedgerow.algorithms.core.pytree import flatten
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.hedge.deployment import KEPT, DeployedState
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.search_table import hedge_sentences
from hedgerow.searchspaces.spaces.search_file import SearchSpec, parse_search
from hedgerow.searchspaces.tune import search_runner
from hedgerow.searchspaces.tune.callbacks import SearchCallback
from hedgerow.searchspaces.tune.search_runner import check_search, mixture_obstacle, resume_search, search

ROUNDS, LR, STEPS = 6, [0.01, 0.3], [1, 2]


def plan(output: Path, rounds: int = ROUNDS, **keys) -> SearchSpec:
    """Two packs of two experts, on a stream of small tasks."""
    return parse_search(
        {
            "name": "small",
            "rounds": rounds,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "stream", "tasks": rounds, "ways": 5, "train": 20, "test": 20},
                "model": {"name": "mlp", "hidden": [8]},
            },
            "algorithm": {"name": "mogd", "batch_size": 5},
            "engine": {"mode": "loop"},
            "evaluation": {"every": 3},
            "checkpoints": {"every": 2},
            "tracking": {"enabled": False},
            "output": str(output),
            "search": {"kind": "hedge", "pack": 2, "space": {"algorithm.lr": LR, "algorithm.steps": STEPS}, **keys},
        }
    )


def reported(chosen: SearchSpec, together: float) -> tuple[FinishedSearch, int]:
    """A search, and its number of reports. together: seconds of lock-step rounds that a trial reports together."""
    results, report = [], SearchCallback.on_trial_result

    def counted(self: SearchCallback, *args, **info) -> None:
        results.append(info["result"])
        report(self, *args, **info)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_runner, "TOGETHER", together)
        patch.setattr(SearchCallback, "on_trial_result", counted)
        return search(chosen), len(results)


@pytest.fixture(scope="module")
def reported_together(ray_here, tmp_path_factory) -> tuple[FinishedSearch, int]:
    return reported(plan(tmp_path_factory.mktemp("finished"), deploy="mixture"), together=600)


@pytest.fixture(scope="module")
def finished(reported_together) -> FinishedSearch:
    return reported_together[0]


class TestDeployed:
    def test_its_scores_are_those_of_the_experts_before_they_learn_the_task(self, finished):
        assert finished.warning is None
        assert [record["round"] for record in finished.hedge] == list(range(1, ROUNDS + 1))
        for i, record in enumerate(finished.hedge):
            scores = record["deployed"]
            for policy in ("sample", "leader"):
                mine = finished.trials[scores[policy]["expert"]].records[i]
                assert (scores[policy]["accuracy"], scores[policy]["loss"]) == (
                    mine["test_accuracy"],
                    mine["test_loss"],
                )
            assert scores["leader"]["expert"] == np.argmax(record["weights"])
            assert scores["mixture"]["loss"] <= record["expected"]["test_loss"] + 1e-6
        # All experts begin with the same model, so that the mixture is this model, too.
        first = finished.hedge[0]["deployed"]
        assert first["mixture"]["accuracy"] == first["leader"]["accuracy"]
        assert first["mixture"]["loss"] == pytest.approx(first["leader"]["loss"], abs=1e-6)

    def test_the_folder_has_the_models_after_the_last_round_and_predicts_with_them(self, finished, tmp_path):
        deployed = load(finished.folder).deployed
        assert (deployed.round, deployed.policy, deployed.experts) == (ROUNDS, "mixture", [0, 1, 2, 3])
        assert sum(deployed.weights.values()) == pytest.approx(1)
        data, _ = check(finished.spec.experiment, None)
        samples, expected = data.x_train[:200], np.zeros((200, data.classes))
        for expert, weight in deployed.weights.items():
            overrides = finished.trials[expert].overrides | {"resources.executor": "inline"}
            alone = run(finished.spec.trial(overrides).model_copy(update={"output": tmp_path})).parameters
            for name, leaf in alone.items():
                assert np.array_equal(deployed.models[expert][name].numpy(), leaf)
            x = ((samples - data.mean) / data.std).reshape(200, -1)
            hidden = np.maximum(x @ alone["1.weight"].T + alone["1.bias"], 0)
            scores = np.exp(hidden @ alone["3.weight"].T + alone["3.bias"])
            expected += weight * scores / scores.sum(1, keepdims=True)
        probabilities = deployed.predict(samples)
        assert probabilities == pytest.approx(expected, abs=1e-5)
        adapted = deployed.predict(data.x_train[:30], support=(data.x_train[:50], data.y_train[:50]))
        assert not np.allclose(adapted, probabilities[:30])

    def test_experts_leave_no_files_of_their_rounds(self, finished):
        assert not list(finished.folder.path.glob(f"experts/*/{KEPT}"))


@pytest.mark.usefixtures("ray_here")
class TestRounds:
    @pytest.mark.exhaustive("processes")
    def test_experts_that_take_turns_or_run_ahead_have_the_same_records(self, tmp_path, finished):
        turns = search(plan(tmp_path / "turns", concurrency=1))
        ahead = search(plan(tmp_path / "ahead", ahead=3, report_every=2, deploy="sample"))
        assert turns.hedge == ahead.hedge == finished.hedge
        assert turns.deployed.experts == [finished.hedge[-1]["leader"]] or turns.deployed.round == ROUNDS
        assert ahead.deployed.policy == "sample"

    @pytest.mark.exhaustive("processes")
    def test_rounds_that_are_reported_together_are_those_of_a_report_per_round(self, tmp_path, reported_together):
        together, few = reported_together
        apart, many = reported(plan(tmp_path, deploy="mixture"), together=0)
        assert (few, many) == (2, 2 * ROUNDS)
        assert_same(together, apart)

    @pytest.mark.exhaustive("processes")
    @pytest.mark.parametrize("every", [1, 2])
    def test_so_are_those_of_a_federated_search(self, tmp_path, every):
        chosen = [
            federated_plan(tmp_path / name, search__ahead=0, evaluation__every=every) for name in ("together", "apart")
        ]
        (together, few), (apart, many) = reported(chosen[0], together=600), reported(chosen[1], together=0)
        assert (few, many) == (2, 2 * ROUNDS // every)
        assert all(record["deployed"]["mixture"] for record in together.hedge)
        assert_same(together, apart)

    @pytest.mark.exhaustive("kills")
    def test_a_search_that_was_killed_continues_with_the_same_deployed_sequence(self, tmp_path):
        rounds = 40
        file = tmp_path / "file.yaml"
        file.write_text(plan(tmp_path / "killed", rounds).dump())
        victim = hedgerow("search", str(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while not (folders := list(tmp_path.glob("killed/small-*"))) or _rounds(folders[0]) < 5:
            assert victim.poll() is None, "the search ended before it could be killed"
            time.sleep(0.01)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        assert 5 <= _rounds(folders[0]) < rounds
        before = load(folders[0])
        # Rounds are reported together, so that the deployed state may be ahead of the records by a report.
        assert len(before.hedge) - 1 <= before.deployed.round <= rounds
        resumed = resume_search(str(folders[0]))
        undisturbed = search(plan(tmp_path / "undisturbed", rounds))
        assert resumed.hedge == undisturbed.hedge
        assert all(record["deployed"]["mixture"] for record in resumed.hedge)
        assert resumed.deployed.round == rounds
        assert resumed.warning is None


def assert_same(first: FinishedSearch, second: FinishedSearch) -> None:
    """Two searches have the same records, journal and deployed state, except for times."""
    assert first.hedge == second.hedge
    for one, other in zip(first.trials, second.trials, strict=True):
        assert [r | {"seconds": 0} for r in one.records] == [r | {"seconds": 0} for r in other.records]
    journals = [sorted((one.folder.path / "losses.jsonl").read_text().splitlines()) for one in (first, second)]
    assert journals[0] == journals[1]
    states = [DeployedState.read(one.folder.path / "deployed") for one in (first, second)]
    assert (states[0].round, states[0].weights) == (states[1].round, states[1].weights)
    assert states[0].models.keys() == states[1].models.keys()
    for expert, model in states[0].models.items():
        leaves, others = flatten(model), flatten(states[1].models[expert])
        assert leaves.keys() == others.keys()
        assert all(np.array_equal(leaf, others[name]) for name, leaf in leaves.items())


def _rounds(folder: Path) -> int:
    return len(RunLog(folder / "metrics.jsonl").read())


class TestKeys:
    def test_rounds_on_a_stream_are_lock_step_by_default_and_those_of_a_federated_search_are_not(self, tmp_path):
        for chosen, ahead, every in [
            (plan(tmp_path), 0, 1),
            (plan(tmp_path, report_every=5), 0, 1),
            (plan(tmp_path, report_every=5, ahead=7), 7, 5),
            (federated_plan(tmp_path, search__ahead=None, search__report_every=5), 20, 5),
            (federated_plan(tmp_path, search__ahead=0), 0, 1),
        ]:
            assert chosen.search._ahead(chosen.experiment) == ahead
            assert chosen.search.rounds_per_report(chosen.experiment) == every

    def test_a_search_without_a_deployed_model_is_one_sentence(self, finished):
        empty = FinishedSearch(finished.folder, finished.spec, finished.trials, finished.hedge)
        (home := finished.folder.path / "deployed").rename(aside := home.with_name("aside"))
        with pytest.raises(UserError, match="has deployed no model yet: a search of kind hedge deploys one"):
            _ = empty.deployed
        aside.rename(home)

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ({}, None),
            (
                {"search__metric": "client_accuracy", "search__allow_test_selection": True},
                "does not use the validation",
            ),
            ({"search__space": {"seed": [0, 1]}}, "the experts are not scored on the same samples"),
            ({"search__space": {"task.partition.alpha": [0.5, 1.0]}}, "the experts are not scored on the same samples"),
        ],
    )
    def test_where_predictions_cannot_be_mixed_the_reason_is_recorded(self, tmp_path, settings, reason):
        chosen = federated_plan(tmp_path, **settings)
        found = mixture_obstacle(chosen, chosen.configurations, check(chosen.experiment, None))
        assert found is None if reason is None else reason in found


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"rate": "fixed_share"}, "search.comeback: rate fixed_share has no bound with stopped experts; set `rate` to"),
        ({"rate": "exp3"}, "search.comeback: rate exp3 has no bound with stopped experts"),
        ({"prune": 0.1}, "search.comeback and search.prune both stop experts; remove one of them"),
        ({"pack": 2}, "`pack: 2` cannot be used with `comeback`"),
    ],
    ids=str,
)
def test_what_elimination_needs(tmp_path, keys, said):
    with pytest.raises(UserError, match=re.escape(said)):
        check_search(plan(tmp_path, **{"comeback": 0.05, "pack": "off"} | keys))


@pytest.mark.parametrize(
    ("keys", "comeback"),
    [
        ({}, 0.05),
        ({"pack": "auto", "rate": "adahedge"}, 0.05),
        ({"comeback": False}, "off"),  # YAML's reading of `off`
        ({"comeback": 0.2}, 0.2),
        ({"pack": 2}, None),
        ({"prune": 0.01}, None),
        ({"rate": "fixed_share"}, None),
        ({"record": "all"}, None),
    ],
    ids=str,
)
def test_experts_of_a_stream_are_stopped_unless_the_file_says_otherwise(tmp_path, keys, comeback):
    chosen = plan(tmp_path, **{"pack": "off"} | keys)
    assert chosen.search.comeback == comeback
    assert chosen.resolved["search"].get("comeback") == comeback
    stops = isinstance(comeback, float)
    assert (chosen.search._elimination(chosen.experiment) is not None) == stops
    assert parse_search(chosen.resolved).search.comeback == comeback


def test_the_default_metric_of_a_stream_is_that_of_each_task_or_its_mean_by_the_kind(tmp_path):
    hedge = plan(tmp_path).search
    assert (hedge.metric, hedge.mode, hedge.smooth) == ("test_accuracy", "max", 0.0)
    values = plan(tmp_path).resolved
    asha = parse_search({**values, "search": {"kind": "asha", "space": {"algorithm.lr": LR}}}).search
    assert (asha.metric, asha.mode, asha.smooth) == ("ctm", "max", 0.0)
    chosen = parse_search({**values, "search": {"kind": "asha", "smooth": 0.5, "space": {"algorithm.lr": LR}}}).search
    assert (chosen.metric, chosen.smooth) == ("ctm", 0.5)


def test_experts_of_a_fixed_data_set_are_not_stopped(tmp_path):
    assert federated_plan(tmp_path).search.comeback is None


def test_experts_of_a_stream_cannot_rest(tmp_path):
    with pytest.raises(UserError, match=r"search.allocate: promote lets experts rest, and an expert that "):
        check_search(plan(tmp_path, allocate="promote", pack="off"))


@pytest.mark.exhaustive("processes")
def test_elimination_stops_trials_in_lock_step_and_the_closing_lines_say_so(ray_here, tmp_path):
    done = search(plan(tmp_path, rounds=14, comeback=0.0, pack="off"))
    records = RunLog(done.folder.metrics).read()
    assert [record["awake"] for record in records] == [4] * 9 + [1] * 5
    assert records[-1]["price"] == 4
    ran = [len(trial.records) for trial in done.trials]
    assert sorted(ran) == [10, 10, 10, 14]
    assert [trial.status for trial in done.trials] == ["finished" if rounds == 14 else "stopped" for rounds in ran]
    assert ran[records[-1]["leader"]] == 14
    assert done.deployed.round == 14
    assert done.deployed.experts == [records[-1]["leader"]]
    assert "3 of 4 experts were stopped" in hedge_sentences(done.summary)
