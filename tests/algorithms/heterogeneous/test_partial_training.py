"""Partial training: who trains which channels, how their moves are averaged, and what it costs (fedsep.md, 3.2)."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import blobs, check_resuming, distance, identical, partition, run_inline
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Aggregate, Cohort
from hedgerow.algorithms.core.pytree import stack, sub, tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.heterogeneous.partial_training import CapacityGroup, _on
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class

DATA = blobs(samples=160, classes=4)
CLIENTS = partition(np.array([30, 25, 25, 20, 20]), seed=0)
METHODS = ("heterofl", "fedrolex", "federated_dropout", "fjord")
LOCAL = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": 10}


def task():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    return Task(module, torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std), sample_shape=(6,))


def run(name, mode=("vmap", 3), rounds=4, folder=None, data=DATA, clients=CLIENTS, **hyper):
    settings = {"rounds": rounds, "engine": EngineConfig(mode=mode[0], chunk=mode[1])}
    return run_inline(algorithm_class(name), task(), data, clients, {**LOCAL, **hyper}, folder, **settings)


def algorithm(name, **hyper):
    return algorithm_class(name)(registries.algorithms.section(name)(**{**LOCAL, **hyper}), task())


def cohort(round=1, clients=20):
    return Cohort(round, np.arange(clients), np.full(clients, 10), clients, seed=5)


@pytest.mark.grid
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_loop_and_vmap_agree(name, optimizer):
    hyper = {"optimizer": optimizer, "lr": 0.02, "weight_decay": 0.01}
    loop, vmap = (run(name, mode, **hyper) for mode in (("loop", 1), ("vmap", 3)))
    [list(one) for one in (loop, vmap)]
    assert distance(loop.server["w"], vmap.server["w"]) < 1e-5


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_is_undisturbed(name, tmp_path):
    check_resuming(lambda folder: run(name, folder=folder), 2, tmp_path)


@pytest.mark.grid
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("average", ["holders", "all"])
def test_whole_models_are_fedavg(name, average):
    """C16. FedAvg's mean is weighted: clients are of one size."""
    clients = partition(np.full(5, 24), seed=0)
    hyper = {"capacities": [1.0], "masked_loss": False, "average": average}
    partial, plain = run(name, clients=clients, **hyper), run("fedavg", clients=clients)
    [list(one) for one in (partial, plain)]
    assert distance(partial.server["w"], plain.server["w"]) < 1e-6


def test_the_channels_of_each_method():
    capacity = 0.5
    nested = algorithm("heterofl").channels(capacity, cohort(), 0)
    assert {space: kept.tolist() for space, kept in nested.items()} == {"0": [0, 1, 2, 3], "2": [0, 1, 2]}
    rolling = algorithm("fedrolex")
    assert rolling.channels(capacity, cohort(round=1), 0)["2"].tolist() == [0, 1, 2]
    assert rolling.channels(capacity, cohort(round=2), 0)["2"].tolist() == [1, 2, 3]
    assert rolling.channels(capacity, cohort(round=6), 0)["2"].tolist() == [0, 1, 5]
    seen = Counter(c for round in range(1, 7) for c in rolling.channels(capacity, cohort(round), 0)["2"].tolist())
    assert seen == dict.fromkeys(range(6), 3)
    random = algorithm("federated_dropout")
    drawn = [random.channels(capacity, cohort(), client)["0"].tolist() for client in range(200)]
    assert all(len(set(kept)) == 4 and kept == sorted(kept) for kept in drawn)
    often = np.bincount(np.concatenate(drawn), minlength=8) / 200
    assert np.abs(often - 0.5).max() < 4 * np.sqrt(0.25 / 200)


def test_capacities_are_drawn_uniformly_anew_or_once():
    anew, once = algorithm("heterofl"), algorithm("heterofl", redraw=False)
    everybody = cohort(clients=2000)
    for one in (anew, once):
        groups = one.groups(everybody)
        assert np.array_equal(np.sort(np.concatenate([group.clients for group in groups])), np.arange(2000))
        assert all(abs(len(group.clients) - 400) < 4 * np.sqrt(2000 * 0.2 * 0.8) for group in groups)

    def capacities(one, round):
        return {int(client): group.capacity for group in one.groups(cohort(round)) for client in group.clients}

    assert capacities(once, 1) == capacities(once, 2)
    assert capacities(anew, 1) != capacities(anew, 2)


def test_sub_models_that_share_nothing_move_by_all_or_half():
    """C16: averaged over all, a parameter moves by half of what its one holder did; where both hold it, alike."""
    moved = {}
    for average in ("holders", "all"):
        one = algorithm("federated_dropout", capacities=[0.5], average=average, masked_loss=False)
        w = one.task.init()
        halves = ({"0": torch.arange(4), "2": torch.arange(3)}, {"0": torch.arange(4, 8), "2": torch.arange(3, 6)})
        parts = [one.layout.part(w, half) for half in halves]
        up = stack(*(tree_map(lambda p, i=i: torch.full_like(p, 1.0 + i), part) for i, part in enumerate(parts)))
        group = CapacityGroup(0.5, np.arange(2), stack(*halves))
        after = one.average(w, [group], [Aggregate({"moved": up}, np.ones(2, bool), {})])
        moved[average] = sub(after, w)
    assert torch.allclose(
        moved["holders"]["0.weight"], torch.tensor([1.0, 2.0]).repeat_interleave(4)[:, None].expand(8, 6)
    )
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        assert torch.allclose(moved["all"][name], 0.5 * moved["holders"][name])
    assert (moved["holders"]["2.weight"][:3, 4:] == 0).all()
    assert torch.allclose(moved["all"]["4.bias"], torch.full((4,), 1.5))
    assert torch.allclose(moved["holders"]["4.bias"], torch.full((4,), 1.5))


def test_classes_that_a_client_has_not_it_leaves_alone():
    """A class's row is averaged over the clients that have it, and a mean over all others is not mixed in."""
    two = [np.flatnonzero(np.isin(DATA.y_train, classes))[:20] for classes in ([0, 1], [1, 2])]
    data = replace(DATA, x_train=DATA.x_train[np.concatenate(two)], y_train=DATA.y_train[np.concatenate(two)])
    hyper = {"capacities": [1.0], "weight_decay": 0.1, "batch_size": None}
    both = run("heterofl", rounds=1, data=data, clients=partition(np.full(2, 20)), **hyper)
    start = both.server["w"]
    list(both)
    alone = []
    for rows in two:
        data = replace(DATA, x_train=DATA.x_train[rows], y_train=DATA.y_train[rows])
        one = run("heterofl", rounds=1, data=data, clients=partition(np.array([20])), **hyper)
        list(one)
        alone.append(one.server["w"])
    head = both.server["w"]["4.weight"]
    assert torch.equal(head[3], start["4.weight"][3])
    assert torch.equal(alone[0]["4.weight"][2], start["4.weight"][2])
    assert torch.allclose(head[0], alone[0]["4.weight"][0], atol=1e-6)
    assert torch.allclose(head[2], alone[1]["4.weight"][2], atol=1e-6)
    assert torch.allclose(head[1], (alone[0]["4.weight"][1] + alone[1]["4.weight"][1]) / 2, atol=1e-6)
    assert torch.allclose(both.server["w"]["0.weight"], (alone[0]["0.weight"] + alone[1]["0.weight"]) / 2, atol=1e-6)


def test_fjord_with_one_width_is_heterofl_and_with_several_is_not():
    """Ordered dropout draws among the capacities up to the client's: the smallest clients have no choice."""
    hyper = {"scaler": False}
    smallest = {name: run(name, capacities=[0.5, 1.0], redraw=False, **hyper) for name in ("fjord", "heterofl")}
    groups = smallest["fjord"].servers[0].algorithm.inner.groups(cohort(clients=5))
    assert {group.capacity for group in groups} == {0.5, 1.0}
    [list(one) for one in smallest.values()]
    assert distance(smallest["fjord"].server["w"], smallest["heterofl"].server["w"]) > 1e-3
    whole = {name: run(name, capacities=[1.0], **hyper) for name in ("fjord", "heterofl")}
    [list(one) for one in whole.values()]
    assert distance(whole["fjord"].server["w"], whole["heterofl"].server["w"]) < 1e-6


@pytest.mark.parametrize("name", METHODS)
def test_what_is_transmitted_is_the_sub_models(name):
    one = run(name, rounds=1, capacities=[0.5, 1.0])
    groups = one.servers[0].algorithm.inner.groups(Cohort(1, np.arange(5), np.ones(5), 5, seed=0))
    of = {0.5: 4 * 6 + 4 + 3 * 4 + 3 + 4 * 3 + 4, 1.0: 8 * 6 + 8 + 6 * 8 + 6 + 4 * 6 + 4}
    record = next(one)
    down = sum(len(group.clients) * of[group.capacity] for group in groups)
    assert record["scalars_down"] == down
    assert record["scalars_up"] == down + 5 * 4
    assert record["exchanges"] == 1


def test_a_group_that_diverged_leaves_the_others_their_round():
    class Breaking(algorithm_class("heterofl")):
        def train(self, hp, down, state, data):
            up, state, metrics = super().train(hp, down, state, data)
            broken = torch.where(down["width"] < 1, float("nan"), 1.0)
            return {**up, "moved": {name: p * broken for name, p in up["moved"].items()}}, state, metrics

    hyper = {**LOCAL, "capacities": [0.5, 1.0], "redraw": False}
    broken = run_inline(Breaking, task(), DATA, CLIENTS, hyper, rounds=1)
    small = [
        g for g in broken.servers[0].algorithm.inner.groups(Cohort(1, np.arange(5), np.ones(5), 5)) if g.capacity < 1
    ]
    start = broken.server["w"]
    record = next(broken)
    assert record["dropped"] == len(small[0].clients) > 0
    assert np.isfinite(record["train_loss"])
    assert distance(broken.server["w"], start) > 0


@pytest.mark.parametrize("name", METHODS)
def test_they_learn(name):
    records = list(run(name, rounds=30, capacities=[0.5, 1.0], lr=0.5))
    assert records[-1]["test_loss"] < 0.6 * records[0]["test_loss"]
    assert records[-1]["spent_gmacs"] == pytest.approx(30 * records[0]["spent_gmacs"], rel=0.5)


def test_models_without_sub_models_are_refused():
    grouped = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4))
    own = Task(grouped, torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std), sample_shape=(6,))
    kind = algorithm_class("fedrolex")
    assert (
        "task.model: fedrolex needs sub-models"
        in kind(registries.algorithms.section("fedrolex")(), own).incompatibility()
    )
    assert algorithm("fedrolex").incompatibility() is None


def test_the_largest_model_that_is_trained_is_scored():
    """A single capacity: as FedAvg of a model of that size."""
    half = algorithm("heterofl", capacities=[0.5])
    w = half.init_server()["w"]
    scored = half.evaluate_params({"w": w})
    assert {name: tuple(p.shape) for name, p in scored.items()}["2.weight"] == (3, 4)
    assert torch.equal(scored["2.weight"], w["2.weight"][:3, :4])
    assert identical(algorithm("fjord").evaluate_params({"w": w}), w)


def test_a_step_of_fjord_trains_the_first_channels_of_its_width():
    one = algorithm("fjord", capacities=[0.5, 1.0])
    w, batch = one.task.init(), Batch(torch.randn(7, 6), torch.arange(7) % 4)
    everybody = cohort()
    exchanges = [(group, one.exchange(w, group, everybody)) for group in one.groups(everybody)]
    widths = {
        group.capacity: set(exchange.local_inputs_per_client["widths"].flatten().tolist())
        for group, exchange in exchanges
    }
    assert widths == {0.5: {0.5}, 1.0: {0.5, 1.0}}
    for width in (0.5, 1.0):
        loss = one.local_loss(one.hyper, {"widths": torch.tensor([width])}, None)
        slope, value = gradient_and_value(lambda w, loss=loss: loss(w, batch))(w)
        nested = one.layout.nested(width)
        assert torch.allclose(value, one.task.loss(one.layout.part(w, nested), batch), atol=1e-6)
        inside = one.layout.mask({space: _on(kept, one.layout.sizes[space]) for space, kept in nested.items()})
        assert all((slope[name] * (1 - inside[name]) == 0).all() for name in w)
        assert all((slope[name] != 0).any() for name in w)


def test_the_scaler_divides_by_the_share_of_channels():
    one = algorithm("heterofl")
    w, batch = one.task.init(), Batch(torch.randn(7, 6), torch.arange(7) % 4)
    scaled = one.local_loss(one.hyper, {"width": torch.tensor(0.25)}, None)(w, batch)
    assert torch.allclose(scaled, one.task.loss(one.layout.scale(w, 4.0), batch), atol=1e-6)


def test_models_with_nothing_to_thin_are_refused():
    flat = Task(nn.Sequential(nn.Linear(6, 4)), torch.zeros(()), torch.ones(()), sample_shape=(6,))
    for name in METHODS:
        kind = algorithm_class(name)
        assert "only an output layer" in kind(kind.Hyper(), flat).incompatibility()
