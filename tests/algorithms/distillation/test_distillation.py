"""Distillation: its mathematics in closed forms, FedDF, DS-FL and Fed-ET (fedsep.md, 3.2)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import SingleRun, blobs, check_resuming, dataset, distance, experiment, partition, run_inline
from torch import nn

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort
from hedgerow.algorithms.core.pytree import stack, tree_map
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.heterogeneous.model_families import Received
from hedgerow.algorithms.heterogeneous.partial_training import CapacityGroup
from hedgerow.algorithms.objectives.distillation_loss import (
    consensus,
    dissent,
    divergence,
    ensemble,
    sharpened,
    soft_labels,
)
from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.runtime.middleware_order import compose
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.worker import Worker

METHODS = ("feddf", "ds_fl", "fed_et")
DATA = blobs(samples=240, classes=4)
CLIENTS = replace(partition(np.array([30, 25, 25, 20, 20]), seed=0), public=np.arange(120, 180))
LOCAL = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": 10, "capacities": [1.0, 0.5]}
SERVER = {"optimizer": "sgd", "lr": 0.1, "batch_size": 10}
OWN = {
    "feddf": {"distillation": {**SERVER, "steps": 4}},
    "ds_fl": {"open_set": {**SERVER, "batches": 4, "epochs": 2}},
    "fed_et": {"distillation": {**SERVER, "steps": 4}},
}
NUMBERS = {0.5: 4 * 6 + 4 + 3 * 4 + 3 + 4 * 3 + 4, 1.0: 8 * 6 + 8 + 6 * 8 + 6 + 4 * 6 + 4}


def task():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    return Task(module, torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std), sample_shape=(6,))


def run(name, mode=("vmap", 3), rounds=2, folder=None, clients=CLIENTS, **hyper):
    settings = {"rounds": rounds, "engine": EngineConfig(mode=mode[0], chunk=mode[1])}
    return run_inline(algorithm_class(name), task(), DATA, clients, {**LOCAL, **OWN[name], **hyper}, folder, **settings)


def algorithm(name, **hyper):
    return algorithm_class(name)(registries.algorithms.section(name)(**{**LOCAL, **OWN[name], **hyper}), task())


def batch(samples):
    return Batch(torch.zeros(samples, 1), torch.zeros(samples))


def entropy(p):
    return -torch.xlogy(p, p).sum(-1)


# ---- the mathematics -------------------------------------------------------------------------------------------------


def test_temperatures_between_one_class_and_all_alike():
    logits = torch.tensor([[1.0, 2.0, 0.5]])
    assert torch.allclose(soft_labels(logits), logits.softmax(-1))
    assert torch.allclose(soft_labels(logits, 1e-3), torch.tensor([[0.0, 1.0, 0.0]]))
    assert torch.allclose(soft_labels(logits, 1e6), torch.full((1, 3), 1 / 3), atol=1e-5)


def test_sharpening_lowers_the_entropy_and_keeps_the_first_class():
    p = torch.tensor([[0.4, 0.35, 0.25], [0.1, 0.7, 0.2], [0.34, 0.33, 0.33]])
    sharp = sharpened(p, 0.1)
    assert torch.allclose(sharp.sum(-1), torch.ones(3))
    assert (entropy(sharp) < entropy(p)).all()
    assert (sharp.argmax(-1) == p.argmax(-1)).all()
    assert (entropy(sharpened(p, 0.05)) < entropy(sharp)).all()
    # By hand: e^4 / (e^4 + e^3.5 + e^2.5), a softmax of the probabilities themselves.
    assert sharp[0, 0] == pytest.approx(1 / (1 + np.exp(-0.5) + np.exp(-1.5)))
    assert torch.allclose(sharpened(torch.full((1, 4), 0.25), 0.1), torch.full((1, 4), 0.25))


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_slope_of_the_divergence_is_the_difference_of_the_probabilities(temperature):
    torch.manual_seed(0)
    logits, target = torch.randn(5, 4, requires_grad=True), torch.randn(5, 4).softmax(-1)
    divergence(target, logits, batch(5), temperature).backward()
    wanted = temperature * (soft_labels(logits.detach(), temperature) - target) / 5
    assert torch.allclose(logits.grad, wanted, atol=1e-6)


def test_the_divergence_is_a_distance_and_of_one_class_the_cross_entropy():
    torch.manual_seed(0)
    logits = torch.randn(5, 4)
    labels = torch.tensor([0, 3, 1, 1, 2])
    assert abs(float(divergence(soft_labels(logits, 2.0), logits, batch(5), 2.0))) < 1e-6
    assert float(divergence(torch.full((5, 4), 0.25), logits, batch(5))) > 0.01
    hard = nn.functional.one_hot(labels, 4).float()
    assert float(divergence(hard, logits, batch(5))) == pytest.approx(
        float(nn.functional.cross_entropy(logits, labels)), abs=1e-6
    )
    assert float(divergence(torch.zeros(5, 4), logits, batch(5))) == 0
    masked = replace(batch(5), mask=torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0]))
    assert torch.allclose(divergence(hard, logits, masked), divergence(hard[:2], logits[:2], batch(2)))


def test_whoever_is_sure_weighs_more():
    """By hand: variances 2, 8 and 0.5 weigh 4/21, 16/21 and 1/21."""
    logits = torch.tensor([[[0.0, 2.0]], [[4.0, 0.0]], [[1.0, 0.0]]])
    agreed = consensus(logits)
    assert torch.allclose(agreed, torch.tensor([[(16 * 4 + 1) / 21, 4 * 2 / 21]]))
    assert agreed.argmax(-1).tolist() == [0]
    # The first alone says something else.
    assert torch.allclose(dissent(logits, agreed.argmax(-1)), torch.tensor([[0.0, 2.0]]).softmax(-1))
    assert (dissent(logits[1:], torch.tensor([0])) == 0).all()
    # Of two who disagree, the surer one is heard more.
    assert torch.allclose(dissent(logits, torch.tensor([1])), torch.tensor([[(8 * 4 + 0.5) / 8.5, 0.0]]).softmax(-1))
    one = algorithm("fed_et")
    assert torch.allclose(one.targets(one.hyper, logits)[0], torch.tensor([[1.0, 0.0]]))
    assert torch.isfinite(one.targets(one.hyper, torch.zeros(2, 1, 3))).all()


def test_an_ensemble_is_all_models_of_all_shapes():
    one = algorithm("feddf")
    w = one.task.init()
    small = one.layout.part(w, one.layout.nested(0.5))
    x = torch.randn(3, 6)
    other = tree_map(lambda p: 2 * p, w)
    logits = ensemble(one.task, {"w": stack(w, other), "w_0.5": stack(small)}, x)
    assert torch.allclose(logits, torch.stack([one.task.logits(params, x) for params in (w, other, small)]))


# ---- all three -------------------------------------------------------------------------------------------------------


@pytest.mark.grid
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_loop_and_vmap_agree(name, optimizer):
    hyper = {"optimizer": optimizer, "lr": 0.02, "weight_decay": 0.01}
    loop, vmap = (run(name, mode, **hyper) for mode in (("loop", 1), ("vmap", 3)))
    [list(one) for one in (loop, vmap)]
    assert loop.server.keys() == vmap.server.keys()
    assert all(distance(loop.server[key], vmap.server[key]) < 1e-5 for key in loop.server)
    if name == "ds_fl":
        states = [one.states.read(np.arange(5))["w"] for one in (loop, vmap)]
        assert distance(*states) < 1e-5


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_undisturbed(name, tmp_path):
    check_resuming(lambda folder: run(name, folder=folder), 1, tmp_path)


@pytest.mark.parametrize("name", METHODS)
def test_one_worker_is_as_good_as_two(name):
    values = registries.algorithms.section(name)(**{**LOCAL, **OWN[name]})
    wanted = experiment(values, rounds=2)

    def by(workers):
        kind = algorithm_class(name)
        worker = Worker([compose(kind(values, task()))], DATA, CLIENTS, wanted.seed, wanted.resources)
        learner = FederatedServer(wanted, compose(kind(values, task())), CLIENTS, len(DATA.y_test))
        one = SingleRun([learner], worker, [None], workers)
        list(one)
        return one.server

    one, two = by(1), by(2)
    assert all(distance(one[key], two[key]) < 1e-5 for key in one)


@pytest.mark.parametrize("name", METHODS)
def test_they_learn(name):
    faster = {"lr": 0.3, "batch_size": 10}
    own = {key: {**section, "lr": 0.5} for key, section in OWN[name].items()}
    records = list(run(name, rounds=12, **faster, **own))
    assert records[-1]["test_loss"] < 0.6 * records[0]["test_loss"]
    assert records[-1]["test_accuracy"] > 0.8


@pytest.mark.parametrize("name", METHODS)
def test_models_that_normalise_statically_learn_too(name):
    rng = np.random.default_rng(0)
    data = dataset(rng.normal(size=(70, 1, 6, 6)).astype(np.float32), np.arange(70) % 3, test=10)
    clients = replace(partition(np.array([20, 20])), public=np.arange(40, 60))
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), StaticBatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)]
    own = Task(nn.Sequential(*layers), torch.from_numpy(data.mean), torch.from_numpy(data.std), sample_shape=(1, 6, 6))
    hyper = {**LOCAL, **{key: {**section, "batch_size": 5} for key, section in OWN[name].items()}}
    one = run_inline(algorithm_class(name), own, data, clients, hyper, rounds=2)
    start = one.server["w"]
    records = list(one)
    assert all(np.isfinite(record["test_loss"]) and record["dropped"] == 0 for record in records)
    assert distance(one.server["w"], start) > 0


@pytest.mark.parametrize("name", METHODS)
def test_what_is_transmitted(name):
    one = run(name, rounds=1)
    groups = one.servers[0].algorithm.inner.groups(Cohort(1, np.arange(5), np.ones(5), 5, seed=0))
    record = next(one)
    models = sum(len(group.clients) * NUMBERS[group.capacity] for group in groups)
    assert len(groups) == 2
    labels = 5 * 40 * 4
    assert record["scalars_up"] == record["scalars_down"] == (labels if name == "ds_fl" else models)
    assert record["exchanges"] == (2 if name == "ds_fl" else 1)


def test_models_without_sub_models_and_capacities_that_leave_the_server_out_are_refused():
    grouped = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    own = Task(grouped, torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std), sample_shape=(6,))
    for name in METHODS:
        kind = algorithm_class(name)
        assert (
            f"task.model: {name} needs sub-models" in kind(registries.algorithms.section(name)(), own).incompatibility()
        )
        assert algorithm(name).incompatibility() is None
        assert ("without 1" in str(algorithm(name, capacities=[0.5]).incompatibility())) == (name == "feddf")
    assert [algorithm(name).public_samples for name in METHODS] == [1, 40, 1]
    with pytest.raises(ValueError, match="`momentum` is for sgd"):
        algorithm("feddf", distillation={"optimizer": "adam", "momentum": 0.9})


# ---- FedDF -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_feddf_of_one_shape_without_distillation_is_fedavg(weighting):
    own = {"capacities": [1.0], "distillation": {"steps": 0}}
    weighted = {"aggregation": {"weighting": weighting}}
    fused = run("feddf", **own, **weighted)
    local = {key: value for key, value in LOCAL.items() if key != "capacities"} | weighted
    plain = run_inline(algorithm_class("fedavg"), task(), DATA, CLIENTS, local, rounds=2)
    [list(one) for one in (fused, plain)]
    assert distance(fused.server["w"], plain.server["w"]) < 1e-6
    assert (
        algorithm_class("feddf")(registries.algorithms.section("feddf")(**{**LOCAL, **own}), task()).public_samples == 0
    )


def test_a_client_alone_is_the_ensemble_and_has_nothing_to_learn_from_itself():
    alone = replace(partition(np.array([30])), public=CLIENTS.public)
    both = {
        steps: run("feddf", rounds=1, clients=alone, capacities=[1.0], distillation={**SERVER, "steps": steps})
        for steps in (0, 4)
    }
    [record] = list(both[4])
    list(both[0])
    assert abs(record["train_distillation_loss"]) < 1e-6
    assert distance(both[4].server["w"], both[0].server["w"]) < 1e-6


def test_a_step_of_feddf_goes_from_the_average_towards_the_mean_logits():
    """One step of SGD on all public samples, by autograd, for both shapes: w_bar - lr grad KL."""
    own = {"distillation": {"optimizer": "sgd", "lr": 0.3, "batch_size": 60, "steps": 1}, "temperature": 2.0}
    one = algorithm("feddf", **own)
    server, cohort = one.init_server(), Cohort(1, np.arange(5), CLIENTS.train_sizes, 5, seed=0)
    generator = one.round(server, cohort)
    exchanges = next(generator)
    torch.manual_seed(1)
    models = [
        stack(*(tree_map(lambda p: p + 0.3 * torch.randn_like(p), exchange.broadcast["w"]) for _ in exchange.clients))
        for exchange in exchanges
    ]
    kept = [np.ones(len(exchange.clients), bool) for exchange in exchanges]
    pool = generator.send([Aggregate({"w": w}, k, {}) for w, k in zip(models, kept, strict=True)])
    students = pool.broadcast["students"]
    sizes = torch.from_numpy(CLIENTS.train_sizes[exchanges[0].clients]).float()
    first = exchanges[0].broadcast["w"]
    mean = tree_map(lambda p: torch.tensordot(sizes / sizes.sum(), p, 1), models[0])
    assert first["0.weight"].shape == (8, 6)
    assert distance(students["w"], mean) < 1e-6

    run_ = run("feddf", **own)
    samples = run_.worker.samples["pool"]
    streams = samples.streams(pool.batches, (0, 1, 9), pool.clients)
    data = ClientData(samples.x, samples.y, samples.prepare, {k: (i[0], m[0]) for k, (i, m) in streams.items()}, False)
    learnt, _, _ = one.fuse(one.hyper, pool.broadcast, {}, data)
    x = torch.from_numpy(DATA.x_train[CLIENTS.public])
    target = soft_labels(ensemble(one.task, pool.broadcast["teachers"], x).mean(0), 2.0)
    for name, w in students.items():
        w = {key: p.clone().requires_grad_() for key, p in w.items()}
        divergence(target, one.task.logits(w, x), batch(60), 2.0).backward()
        assert distance(learnt[name], {key: (p - 0.3 * p.grad).detach() for key, p in w.items()}) < 1e-5


def test_prototypes_that_nobody_had_are_distilled_as_well():
    one = run(
        "feddf",
        rounds=1,
        capacities=[1.0, 0.5, 0.25],
        clients=replace(partition(np.array([30])), public=CLIENTS.public),
    )
    start = one.server
    list(one)
    assert start.keys() == {"w", "w_0.5", "w_0.25"}
    assert all(distance(one.server[name], start[name]) > 1e-4 for name in start)


# ---- DS-FL -----------------------------------------------------------------------------------------------------------


def test_soft_labels_are_averaged_over_whoever_answered_and_sharpened():
    one = algorithm("ds_fl")
    generator = one.round({"w": one.task.init()}, Cohort(1, np.arange(10), np.ones(10, int), 10, seed=0))
    exchanges = next(generator)
    assert all(exchange.broadcast == {} for exchange in exchanges)
    torch.manual_seed(0)
    said = [torch.rand(len(exchange.clients), 4, 10, 4).softmax(-1) for exchange in exchanges]
    kept = [np.arange(len(s)) > 0 for s in said[:1]] + [np.ones(len(said[1]), bool)]
    assert kept[0].any()
    results = [Aggregate({"labels": s[torch.from_numpy(k)].sum(0)}, k, {}) for s, k in zip(said, kept, strict=True)]
    *_, server = generator.send(results)
    wanted = torch.cat([said[0][1:], said[1]]).mean(0)
    assert torch.allclose(server.broadcast["labels"], sharpened(wanted, 0.1), atol=1e-6)
    assert server.site == "pool"


def test_clients_keep_models_of_their_capacity():
    one = run("ds_fl", rounds=2)
    groups = one.servers[0].algorithm.inner.groups(Cohort(1, np.arange(5), np.ones(5), 5, seed=0))
    list(one)
    for group in groups:
        w = one.states.read(group.clients)["w"]
        kept = {1.0: 8, 0.5: 4}[group.capacity]
        assert (w["0.weight"][:, :kept] != 0).all()
        assert (w["0.weight"][:, kept:] == 0).all()
        assert len({float(own) for own in w["0.bias"][:, 0]}) == len(group.clients)


# ---- Fed-ET ----------------------------------------------------------------------------------------------------------


def test_the_servers_representation_is_the_mean_over_those_who_have_it_and_its_last_layer_its_own():
    one = algorithm("fed_et", capacities=[0.75, 0.5])
    w = one.task.init()
    clients = {0.75: np.arange(2), 0.5: np.arange(2, 3)}
    groups = [CapacityGroup(capacity, ids, one.layout.nested(capacity)) for capacity, ids in clients.items()]
    received = [
        Received(
            group,
            stack(
                *(tree_map(lambda p, v=v: torch.full_like(p, v), one.layout.part(w, group.channels)) for v in values)
            ),
            torch.ones(len(values)),
        )
        for group, values in zip(groups, ([1.0, 2.0], [6.0]), strict=True)
    ]
    found = one.represented(w, received)
    assert torch.allclose(found["0.bias"][:4], torch.tensor(3.0))
    assert torch.allclose(found["0.bias"][4:6], torch.tensor(1.5))
    assert torch.equal(found["0.bias"][6:], w["0.bias"][6:])
    assert torch.allclose(found["2.weight"][:3, 4:6], torch.tensor(1.5))
    assert torch.equal(found["4.weight"], w["4.weight"])
    assert torch.equal(found["4.bias"], w["4.bias"])


def test_the_representation_goes_back_and_small_models_keep_their_last_layers():
    one = run("fed_et", rounds=2)
    layout = one.servers[0].algorithm.inner.layout
    list(one)
    for capacity in (1.0, 0.5):
        mine, part = one.server[f"w_{capacity:g}"], layout.part(one.server["w"], layout.nested(capacity))
        for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
            assert torch.equal(mine[name], part[name])
        assert (mine["4.weight"] != part["4.weight"]).all()


def test_those_who_disagree_are_heard():
    heard, unheard = (run("fed_et", rounds=2, diversity=strength) for strength in (1.0, 0.0))
    [list(one) for one in (heard, unheard)]
    assert distance(heard.server["w"], unheard.server["w"]) > 1e-5
