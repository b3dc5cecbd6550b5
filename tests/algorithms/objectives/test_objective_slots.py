"""Objectives as a slot: the user's own, with other slots, in packs and searches, and in the former spelling."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from command_line import hedgerow
from fences import blocks
from guides import CLIENTS, DATA, DISK, GUIDE, TOGETHER, task
from helpers import (
    PackRun,
    SingleRun,
    blobs,
    build,
    check_resuming,
    distance,
    experiment,
    identical,
    model,
    objection,
    objective,
    partition,
    run_inline,
    small_task,
)
from paths import ROOT

from hedgerow.algorithms import ALGORITHMS
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.fedsplit import FedSplit
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.objectives.objective import Objective
from hedgerow.algorithms.slots.slots import Slots
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.choices import algorithms
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.loader import load_experiment, parse_experiment
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.runtime.middleware_order import compose
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker
from hedgerow.searchspaces.spaces.packing import pack_trials
from hedgerow.searchspaces.spaces.search_file import parse_search

PAGE = ROOT / "docs" / "how-to" / "own-objective.md"
LOOP, VMAP = EngineConfig(mode="loop"), EngineConfig(mode="vmap", chunk=2)


def file(**more):
    return {
        "name": "x",
        "rounds": 2,
        "task": {"data": {"name": "digits"}, "partition": {"kind": "iid", "clients": 10}, "model": {"name": "mlp"}},
        "algorithm": {"name": "fedavg", "lr": 0.1, "batch_size": 20},
        "engine": {"mode": "loop"},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
        **more,
    }


# ---- which methods have the slot -------------------------------------------------------------------------------------


def test_the_methods_that_minimise_the_tasks_loss_have_the_slot():
    methods = {choice.name for choice in algorithms() if choice.name in ALGORITHMS and choice.slots["objective"]}
    assert methods == {
        "fedavg", "fedprox", "feddyn", "scaffold", "fednova", "fedsplit", "central",
        "ditto", "fedper", "fedrep", "fedbn",
    }  # fmt: skip
    own = objective(kind="stability")
    assert all(objection(kind, task(), own) is None for kind in (FedAvg, FedProx, FedDyn, Scaffold, FedSplit, Central))
    assert objection(algorithm_class("fedsgd"), task(), own) == "objective: fedsgd has its own loss; remove it"


class Counting(Objective):
    """The task's loss, and client state: how often a client took part."""

    def init_client(self, task):
        return {"rounds": torch.zeros(())}

    def begin(self, task, hp, down, state, data):
        return task.loss, state["rounds"] + 1

    def end(self, task, hp, w, state, context, data):
        return {"rounds": context}, {"participated": context}


@pytest.mark.grid
@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize("method", [FedAvg, FedDyn, Scaffold, FedSplit])
def test_an_objective_that_is_the_tasks_loss_changes_no_bit(method, engine):
    data, clients = blobs(), partition(np.array([20, 30, 10, 40]), seed=0)
    settings = {"rounds": 3, "clients_per_round": 0.5, "engine": engine}
    runs = [run_inline(method, small_task(data), data, clients, {"batch_size": 8}, **settings) for _ in range(2)]
    # The second run with the objective in the slot.
    own, plain = Slots(objective=Counting(kind="counting")), runs[1].servers[0]
    worker = Worker([compose(runs[1].worker.algorithms[0].inner, own)], data, clients, 0)
    learner = FederatedServer(plain.experiment, compose(plain.algorithm.inner, own), clients, len(data.y_test))
    runs[1] = SingleRun([learner], worker, [None])
    records = [list(one) for one in runs]
    assert identical(model(runs[0]), model(runs[1]))
    rounds = runs[1].states.read(np.arange(4))["objective"]["rounds"]
    assert rounds.sum() == sum(record["participants"] for record in records[1])
    assert records[1][0]["train_participated"] == 1


def test_in_one_place_there_is_no_client_state():
    said = objection(Central, task(), Counting(kind="counting"))
    assert said == "objective: central has no clients, but counting needs client state; remove it"


# ---- the user's own --------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the module of the page about objectives of one's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for block in blocks(PAGE):
        if block.file:
            Path(block.file).write_text(block.text)
    return tmp_path


@pytest.mark.exhaustive("processes")
def test_an_objective_of_ones_own_runs_by_its_dotted_path(here):
    quietly = ("--set", "tracking.enabled=false", "--set", "resources.executor=inline")
    done = hedgerow("run", "own_objective.yaml", *quietly)
    assert done.exit_code == 0, done.output
    losses = {}
    for weight in (None, 0.0, 0.5):
        own = None if weight is None else {"kind": "logit_penalty.LogitPenalty", "weight": weight}
        Path("mine.yaml").write_text(yaml.safe_dump(file(objective=own)))
        done = hedgerow("run", "mine.yaml", "--json")
        assert done.exit_code == 0, done.output
        folder = Path(json.loads(done.stdout)["runs"][0]["folder"])
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        losses[weight] = [json.loads(line)["train_loss"] for line in lines]
        assert load_experiment(folder / "experiment.yaml").model_dump()["objective"] == own
    assert losses[None] == losses[0.0]
    assert losses[0.5][0] > losses[None][0]


def test_mistakes_in_an_objective_of_ones_own_are_one_sentence(here):
    def refusal(**own):
        with pytest.raises(UserError) as refused:
            parse_experiment(file(objective=own))
        return str(refused.value)

    kind = "logit_penalty.LogitPenalty"
    assert "objective.weigth is not a key here; did you mean 'weight'?" in refusal(kind=kind, weigth=1.0)
    assert "objective.weight must be at least 0, not -1.0" in refusal(kind=kind, weight=-1.0)
    assert "objective.kind: module 'logit_penalty' has no 'Nothing'" in refusal(kind="logit_penalty.Nothing")
    assert "is not an objective; name a class that derives from Objective" in refusal(kind="logit_penalty.Task")


# ---- with other slots ------------------------------------------------------------------------------------------------


def together(engine=LOOP, folder=None, rounds=3):
    """SCAFFOLD with a guide, top-k and Adam on the server."""
    section = {
        "lr": 0.05,
        "batch_size": 8,
        "epochs": 2,
        "objective": DISK,
        "transforms": [{"kind": "top_k", "entries": 60, "error_feedback": False}],
        "aggregation": {"server_optimizer": {"optimizer": "adam", "lr": 0.01}},
    }
    settings = {"rounds": rounds, "clients_per_round": 0.5, "engine": engine}
    return run_inline(Scaffold, task(), DATA, CLIENTS, section, folder, **settings)


def test_an_objective_goes_with_transforms_and_a_server_optimizer():
    loop, batched = together(LOOP), together(VMAP)
    records = [list(one) for one in (loop, batched)]
    assert distance(model(loop), model(batched)) < 1e-4
    assert distance(model(loop), task().init()) > 1e-3
    # Client states hold the method's and the objective's.
    assert set(loop.states.read(np.arange(4))) == {"c", "objective"}
    assert all(np.isfinite(record["train_guide_loss"]) for record in records[0])


def test_a_run_with_all_slots_is_resumed_as_if_it_had_never_stopped(tmp_path):
    check_resuming(lambda folder: together(folder=folder, rounds=4), 2, tmp_path)


# ---- packs -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize(
    "sides",
    [
        [{**DISK, "alpha": alpha, "guide": {**GUIDE, "guide_lr": lr}} for alpha, lr in ((0.3, 0.01), (0.6, 0.1))],
        [{**TOGETHER, "guide": {**GUIDE, "guide_lr": 0.1, "lambda_min": weight}} for weight in (0.1, 20.0)],
        [{"kind": "distillation", "limit": limit, "dual_lr": lr} for limit, lr in ((0.0, 1.0), (0.1, 2.0))],
    ],
    ids=lambda sides: sides[0]["kind"],
)
def test_every_expert_of_a_pack_learns_what_it_learns_alone(sides, engine):
    sections, settings = [{"lr": 0.05, "batch_size": 8, "objective": side} for side in sides], {"rounds": 2}
    settings["engine"] = engine
    algorithms = [build(FedDyn, section, task()) for section in sections]
    floats = [one.hyper.floats() for one in algorithms]
    differing = {path for path, value in floats[0].items() if floats[1][path] != value}
    assert all(path.startswith("objective.") for path in differing)
    assert differing
    worker = Worker([build(FedDyn, section, task()) for section in sections], DATA, CLIENTS, 0)
    wanted = experiment(FedDyn.Hyper(), **settings)
    learners = [FederatedServer(wanted, one, CLIENTS, len(DATA.y_test)) for one in algorithms]
    packed = PackRun(learners, worker, [None] * len(sections))
    list(packed)
    assert distance(learners[0].state["w"], learners[1].state["w"]) > 1e-5
    for learner, section in zip(learners, sections, strict=True):
        alone = run_inline(FedDyn, task(), DATA, CLIENTS, section, **settings)
        list(alone)
        if engine is LOOP:
            assert identical(learner.state["w"], alone.server["w"])
        assert distance(learner.state["w"], alone.server["w"]) < 1e-5


def test_experts_that_differ_in_floats_of_their_objective_share_a_pack():
    sides = [{"kind": "stability", "alpha": alpha, "noise": noise} for alpha, noise in ((0.1, 0.1), (0.5, 0.2))]
    sides += [{"kind": "stability", "limit": 0.1}, None]
    experiments = [parse_experiment(file(objective=side)) for side in sides]
    assert pack_trials(experiments, room=1, size=None) == [[0, 1], [2], [3]]


# ---- searches --------------------------------------------------------------------------------------------------------


def test_a_search_compares_methods_with_their_objectives():
    """A whole section `algorithm` among the values of a search brings its objective along."""
    stability = {"kind": "stability", "alpha": 0.2}
    sections = [{"name": "fedavg"}, {"name": "feddyn", "objective": stability}, {"name": "fedavg", "objective": None}]
    search = {"kind": "grid", "space": {"algorithm": sections}}
    found = parse_search(file(search=search, objective={"kind": "stability", "alpha": 0.9}))
    trials = [found.trial(overrides) for overrides in found.configurations]
    assert [trial.algorithm.name for trial in trials] == ["fedavg", "feddyn", "fedavg"]
    assert [trial.objective and trial.objective.alpha for trial in trials] == [0.9, 0.2, None]
