"""Packs: experts that differ in floats train together, batched over (expert, client), and learn as if alone."""

import time

import pytest
import torch
from helpers import distance, identical, run_inline, small_task
from packs import DATA, RAGGED, pack
from pydantic import BaseModel
from searches import plan
from toys import Diverging, Stateful, TwoPhases

from hedgerow.algorithms.core.hyperparameters import HyperParameters
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.fednova import FedNova
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.personalized.ditto import Ditto
from hedgerow.algorithms.personalized.fedrep import FedRep
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Checkpoints, EngineConfig
from hedgerow.searchspaces.spaces.packing import members, pack_trials
from hedgerow.searchspaces.spaces.search_file import load_search
from hedgerow.searchspaces.tune.search_runner import search

LOOP, VMAP = EngineConfig(mode="loop"), EngineConfig(mode="vmap", chunk=4)


def alone(algorithm, hyper, **settings):
    run = run_inline(algorithm, small_task(DATA), DATA, RAGGED, hyper, **settings)
    return run, list(run)


PACKS = [
    (FedAvg, [{"lr": lr, "batch_size": 8} for lr in (0.01, 0.1, 0.5)]),
    (FedAvg, [{"lr": 0.1, "momentum": m, "weight_decay": d, "clip_norm": c, "lr_decay": q, "batch_size": 8}
              for m, d, c, q in ((0.0, 0.0, 0.1, 1.0), (0.9, 0.0, 1.0, 0.5), (0.5, 0.01, 10.0, 0.9))]),
    (FedAvg, [{"batch_size": 8, "aggregation": {"server_optimizer": {"lr": lr}}} for lr in (0.5, 1.0)]),
    (FedAvg, [{"batch_size": 8, "transforms": [{"kind": "clip", "norm": norm}, {"kind": "top_k", "entries": 20}]}
              for norm in (0.01, 0.1, 10.0)]),
    (FedProx, [{"mu": mu, "batch_size": 8, "epochs": 2} for mu in (0.0, 0.1, 1.0, 5.0)]),
    (FedAvg, [{"batch_size": 8, "objective": {"kind": "stability", "temperature": 1.0, **weight}}
              for weight in ({"alpha": 0.2}, {"alpha": 0.9}, {"alpha": 0.5, "noise": 1.0})]),
    (FedAvg, [{"batch_size": 8, "objective": {"kind": "stability", "temperature": 1.0, "noise": 1.0, "limit": limit}}
              for limit in (0.0, 0.2)]),
    (FedNova, [{"momentum": momentum, "batch_size": 8} for momentum in (0.0, 0.5, 0.9)]),
    (Ditto, [{"lr": lr, "lam": lam, "batch_size": 8} for lr, lam in ((0.1, 0.0), (0.2, 1.0))]),
    (FedRep, [{"lr": lr, "batch_size": 8, "head_epochs": 2} for lr in (0.1, 0.2)]),
    (Stateful, [{"pull": pull, "batch_size": 8} for pull in (0.0, 0.1, 0.3)]),
]  # fmt: skip


def test_the_seconds_of_all_experts_together_are_those_of_the_pack():
    begun = time.perf_counter()
    packed = pack(FedAvg, [{"lr": lr} for lr in (0.01, 0.1, 0.5)], rounds=2, engine=LOOP)
    last = list(packed)[-1]
    assert 0 < sum(record["seconds"] for record in last.values()) <= time.perf_counter() - begun
    for server, record in zip(packed.servers, last.values(), strict=True):
        assert 0 < sum(server.clock.values()) <= record["seconds"]


@pytest.mark.parametrize("engine", [LOOP, VMAP], ids=["loop", "vmap"])
@pytest.mark.parametrize(("algorithm", "hypers"), PACKS)
@pytest.mark.grid
def test_every_expert_learns_what_it_learns_alone(algorithm, hypers, engine):
    settings = {"rounds": 4, "clients_per_round": 0.7, "engine": engine}
    packed = pack(algorithm, hypers, **settings)
    rounds = list(packed)
    assert [sorted(records) for records in rounds] == [list(range(len(hypers)))] * 4
    models = [learner.state["w"] for learner in packed.servers]
    assert distance(models[0], models[1]) > 1e-4
    for learner, hyper in zip(packed.servers, hypers, strict=True):
        single, records = alone(algorithm, hyper, **settings)
        if engine is LOOP:
            assert identical(learner.state["w"], single.server["w"])
        assert distance(learner.state["w"], single.server["w"]) < 1e-6
        for mine, theirs in zip(learner.history, records, strict=True):
            for key in theirs.keys() - {"seconds"}:
                assert mine[key] == pytest.approx(theirs[key], abs=1e-5), key


def test_an_expert_that_diverges_disturbs_nobody():
    # Of three penalties one is absurd: its clients are dropped, its model stays, the others go on as if alone.
    hypers = [{"weight_decay": decay, "batch_size": None, "steps": 5} for decay in (0.0, 1e30, 0.01)]
    packed = pack(FedAvg, hypers, rounds=2)
    list(packed)
    assert [learner.history[-1]["dropped"] for learner in packed.servers] == [0, 6, 0]
    assert identical(packed.servers[1].state["w"], small_task(DATA).init())
    for expert in (0, 2):
        single, _ = alone(FedAvg, hypers[expert], rounds=2)
        assert distance(packed.servers[expert].state["w"], single.server["w"]) < 1e-6


def test_experts_whose_exchanges_differ_are_driven_side_by_side():
    # With `everybody` a round of one expert ends early; lock step goes on with the others.
    packed = pack(Diverging, [{"everybody": True}, {"everybody": False}], rounds=2, engine=LOOP)
    list(packed)
    assert [learner.round for learner in packed.servers] == [2, 2]
    assert [learner.committed for learner in packed.servers] == [0, 2]


def test_scratch_states_of_experts_do_not_mix():
    packed = pack(TwoPhases, [{}, {}], rounds=2)
    list(packed)
    assert [float(learner.state["second"]) for learner in packed.servers] == [360, 360]


def test_a_pack_goes_on_from_checkpoints_of_different_rounds(tmp_path):
    hypers = [{"pull": 0.1, "batch_size": 8}, {"pull": 0.3, "batch_size": 8}]
    settings = {"rounds": 6, "engine": LOOP, "checkpoints": Checkpoints(every=0)}
    calm = pack(Stateful, hypers, **settings)
    list(calm)
    folders = [tmp_path / "0", tmp_path / "1"]
    first = pack(Stateful, hypers, folders, **settings)
    next(first)
    first.save()
    next(first)
    # Killed between the two saves: the second expert's checkpoint is a round older.
    first.folders = [folders[0] / "checkpoints", tmp_path / "lost" / "checkpoints"]
    first.save()
    again = pack(Stateful, hypers, folders, **settings)
    assert [learner.round for learner in again.servers] == [2, 1]
    assert [sorted(records) for records in again] == [[1], [0, 1], [0, 1], [0, 1], [0, 1]]
    for mine, theirs in zip(again.servers, calm.servers, strict=True):
        assert identical(mine.state["w"], theirs.state["w"])


def test_floats_are_found_and_replaced_in_nested_sections_too():
    class Inner(BaseModel):
        rate: float = 0.5
        steps: int = 3

    class Hyper(HyperParameters):
        lr: float = 0.1
        clip: float | None = None
        inner: Inner = Inner()

    hyper = Hyper(name="x")
    assert hyper.floats() == {"lr": 0.1, "inner.rate": 0.5}
    changed = hyper.with_floats({"lr": torch.tensor(2.0), "inner.rate": 0.25})
    assert (float(changed.lr), changed.inner.rate, changed.inner.steps) == (2.0, 0.25, 3)
    assert hyper.with_floats({}) is hyper


def test_experts_are_dealt_by_what_they_have_in_common(tmp_path):
    space = {"algorithm.lr": [0.01, 0.1, 1.0], "algorithm.batch_size": [4, 8], "seed": [0, 1]}
    chosen = plan(tmp_path, search__space=space)
    trials = [chosen.trial(overrides) for overrides in chosen.configurations]
    # Rates go together; batch sizes and seeds draw other mini-batches.
    packs = pack_trials(trials, room=1, size=None)
    assert sorted(len(one) for one in packs) == [3, 3, 3, 3]
    for one in packs:
        assert len({(trials[i].algorithm.batch_size, trials[i].seed) for i in one}) == 1
    assert sorted(i for one in packs for i in one) == list(range(12))
    assert sorted(map(len, pack_trials(trials, room=2, size=None))) == [1] * 4 + [2] * 4
    assert sorted(map(len, pack_trials(trials, room=9, size=2))) == [1] * 4 + [2] * 4
    assert pack_trials(trials[:1], room=4, size=None) == [[0]]


def test_experts_whose_own_schedule_differs_in_more_than_floats_are_dealt_apart(tmp_path):
    chosen = plan(
        tmp_path, algorithm={"name": "toys.Growing"}, search__space={"algorithm.growth": [0.0, 0.1, 0.2, 1.0]}
    )
    trials = [chosen.trial(overrides) for overrides in chosen.configurations]
    # In 6 rounds, 0.1 never gives a second pass, and 0.2 gives one from round 5 on.
    assert pack_trials(trials, room=1, size=None) == [[0, 1], [2], [3]]


def test_who_is_in_a_trial():
    assert members("ab_00003", {"overrides": {"seed": 1}}) == [(3, {"seed": 1})]
    assert members("ab_00003", {"overrides": {}, "number": 7}) == [(7, {})]
    assert members("ab_00003", {"pack": [[4, {"seed": 1}], [6, {}]]}) == [(4, {"seed": 1}), (6, {})]
    assert members("ab_00003", {"lr": 0.1}) == [(3, {})]


@pytest.mark.parametrize(("kind", "more"), [("asha", {}), ("pbt", {}), ("hedge", {"prune": 0.01})])
def test_trials_that_end_apart_are_not_packed(kind, more, tmp_path):
    space = {"algorithm.lr": [0.01, 0.3]}
    section = {"kind": kind, "space": space, **more}
    assert plan(tmp_path, search=section).search.packed is None
    with pytest.raises(UserError, match=r"`pack: 2` cannot be used with .*, which treats trials individually"):
        plan(tmp_path, search=section | {"pack": 2})


def test_off_without_quotes_is_off(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text(plan(tmp_path).dump().replace("pack: auto", "pack: off"))
    assert load_search(file).search.pack == "off"
    file.write_text(load_search(file).dump())
    assert load_search(file).search.packed is None


@pytest.mark.exhaustive("processes")
@pytest.mark.usefixtures("ray_here")
def test_a_packed_search_has_the_weights_of_an_unpacked_one(tmp_path):
    space = {"algorithm.lr": [0.01, 0.03, 0.1, 0.3], "algorithm.pull": [0.0, 0.1]}
    settings = {"engine": {"mode": "vmap", "chunk": 5}, "search__space": space}
    apart = search(plan(tmp_path, **settings, search__pack="off"))
    packed = search(plan(tmp_path, **settings))
    assert "packs" not in apart.folder.record()
    assert packed.folder.record()["packs"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [trial.overrides for trial in packed.trials] == [trial.overrides for trial in apart.trials]
    assert [trial.status for trial in packed.trials] == ["finished"] * 8
    for mine, theirs in zip(packed.hedge, apart.hedge, strict=True):
        assert mine["weights"] == pytest.approx(theirs["weights"], abs=1e-6)
    for mine, theirs in zip(packed.trials, apart.trials, strict=True):
        assert len(mine.records) == len(theirs.records) == 6
        assert "expert" not in mine.records[0]
