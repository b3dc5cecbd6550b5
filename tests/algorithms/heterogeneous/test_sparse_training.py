"""Sparse training: which weights a client trains and sends, how masks come about, what it costs (fedsep.md, 3.2)."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers import blobs, check_resuming, distance, identical, partition, run_inline
from torch import nn
from torch.func import vmap
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.messages import Aggregate, Cohort
from hedgerow.algorithms.core.pytree import tree_map, zeros_like
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.heterogeneous.feddst import chosen, readjusted
from hedgerow.algorithms.heterogeneous.sparse_training import erdos_renyi, largest, spread
from hedgerow.algorithms.heterogeneous.zerofl import SwatConv2d, SwatLinear
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.platform.config import registries
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class

DATA = blobs(samples=160, classes=4)
CLIENTS = partition(np.array([30, 25, 25, 20, 20]), seed=0)
ALIKE = partition(np.full(5, 24), seed=0)
JOINT = {"mask_update": "joint", "readjust_every": 2, "warmup_epochs": 2}
METHODS = [("zerofl", {}), ("feddst", {"readjust_every": 2}), ("flash", {"warmup_epochs": 2}), ("flash", JOINT)]
LOCAL = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": 10}
SIZES = {"0.weight": 48, "2.weight": 48}
DENSE = 8 + 6 + 4 * 6 + 4
BITS = 3
"""96 weights, one bit each."""

methods = pytest.mark.parametrize(("name", "more"), METHODS, ids=["zerofl", "feddst", "flash", "flash-joint"])


def task():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    return Task(module, torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std), sample_shape=(6,))


def run(name, mode=("vmap", 3), rounds=4, folder=None, clients=CLIENTS, **hyper):
    settings = {"rounds": rounds, "engine": EngineConfig(mode=mode[0], chunk=mode[1])}
    return run_inline(algorithm_class(name), task(), DATA, clients, {**LOCAL, **hyper}, folder, **settings)


def algorithm(name, **hyper):
    return algorithm_class(name)(registries.algorithms.section(name)(**{**LOCAL, **hyper}), task())


def cohort(round=1, clients=5):
    return Cohort(round, np.arange(clients), np.arange(clients) + 10, clients, seed=0)


def ones(masks):
    return {name: int(mask.sum()) for name, mask in masks.items()}


@pytest.mark.grid
@methods
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_loop_and_vmap_agree(name, more, optimizer):
    hyper = {"optimizer": optimizer, "lr": 0.02, "weight_decay": 0.01, "capacities": [0.5, 0.25], **more}
    loop, vmap = (run(name, mode, **hyper) for mode in (("loop", 1), ("vmap", 3)))
    [list(one) for one in (loop, vmap)]
    assert distance(loop.server["w"], vmap.server["w"]) < 1e-5


@methods
def test_a_resumed_run_is_undisturbed(name, more, tmp_path):
    check_resuming(lambda folder: run(name, folder=folder, **more), 2, tmp_path)


@pytest.mark.grid
@methods
@pytest.mark.parametrize("average", ["holders", "all"])
def test_dense_clients_are_those_of_heterofl(name, more, average):
    """Whole batches: those of Flash's first round are drawn for its second exchange."""
    hyper = {"capacities": [1.0], "average": average, "batch_size": None, "clients": ALIKE}
    sparse, plain = run(name, **hyper, **more), run("heterofl", **hyper)
    [list(one) for one in (sparse, plain)]
    assert distance(sparse.server["w"], plain.server["w"]) < 1e-6


def test_ones_are_spread_over_layers():
    sizes = {"a": 100, "b": 400}
    assert spread(0.1, sizes, {"a": 1.0, "b": 1.0}) == {"a": 10, "b": 40}
    assert spread(0.1, sizes, {"a": 2.0, "b": 0.5}) == {"a": 25, "b": 25}
    assert spread(0.5, sizes, {"a": 9.0, "b": 1.0}) == {"a": 100, "b": 150}, "what does not fit goes to the others"
    assert spread(1.0, sizes, {"a": 9.0, "b": 1.0}) == sizes
    assert spread(0.001, sizes, {"a": 1.0, "b": 1.0}) == {"a": 1, "b": 1}
    assert erdos_renyi({"a": (4, 6), "b": (8, 4, 3, 3)}) == {"a": 10 / 24, "b": 18 / 288}
    smaller, larger = (spread(density, sizes, {"a": 3.0, "b": 1.0}) for density in (0.2, 0.4))
    assert all(smaller[name] <= larger[name] for name in sizes)


@pytest.mark.parametrize(("name", "more"), METHODS[1:])
def test_masks_have_the_promised_ones_and_lie_in_each_other(name, more):
    one = run(name, rounds=5, capacities=[0.75, 0.5, 0.25], redraw=False, **more)
    for _ in one:
        algorithm, server = one.servers[0].algorithm.inner, one.server
        assert ones(server["mask"]) == algorithm.server_ones(server)
        assert sum(ones(server["mask"]).values()) == pytest.approx(0.75 * 96, abs=1)
        assert all((server["w"][layer][mask == 0] == 0).all() for layer, mask in server["mask"].items())
        groups = {group.density: group for group in algorithm.groups(server, cohort(clients=60))}
        for density in (0.75, 0.5, 0.25):
            group = groups[density]
            assert ones(group.masks) == group.ones == spread(density, SIZES, algorithm.profile(server))
        for small, large in ((0.25, 0.5), (0.5, 0.75)):
            for layer in SIZES:
                assert (groups[small].masks[layer] <= groups[large].masks[layer]).all()
                assert (groups[large].masks[layer] <= server["mask"][layer]).all()


def test_masks_move_where_they_shall():
    """Flash's with stage 1 and, where it is joint, ever after; FedDST's in every second round."""
    moved = {}
    for name, more in METHODS[1:]:
        one = run(name, rounds=4, capacities=[0.5], **{"readjust": 0.5, **more})
        masks = [one.server["mask"], *(one.server["mask"] for _ in one)]
        moved[name, more is JOINT] = [not identical(*pair) for pair in pairwise(masks)]
    assert moved["flash", False] == [True, False, False, False]
    assert moved["flash", True] == [True, True, False, True]
    assert moved["feddst", False] == [False, True, False, True]


@methods
def test_weights_outside_a_mask_never_move(name, more):
    """Neither decay nor momentum moves them; and of a client's answer nothing that it does not hold is there."""
    hyper = {"weight_decay": 0.1, "momentum": 0.9, "capacities": [0.25]}
    kept = []

    class Watched(algorithm_class(name)):
        def learn(self, hp, down, data):
            learnt, here, metrics = super().learn(hp, down, data)
            for layer, mask in down["masks"].items():
                kept.append(bool((learnt[layer] == down["w"][layer])[mask == 0].all()))
                kept.append(bool((learnt[layer] != down["w"][layer])[mask == 1].any()))
            return learnt, here, metrics

        def train(self, hp, down, state, data):
            up, *rest = super().train(hp, down, state, data)
            kept.extend(bool((move[up["held"][layer] == 0] == 0).all()) for layer, move in up["moved"].items())
            return up, *rest

    list(
        run_inline(
            Watched,
            task(),
            DATA,
            CLIENTS,
            {**LOCAL, **hyper, **more},
            rounds=2,
            engine=EngineConfig(mode="loop", chunk=1),
        )
    )
    assert kept
    assert all(kept)


def test_who_readjusts_holds_what_it_kept_and_sends_its_mask():
    """What comes has as many ones as what goes, and no say in the averages; what went has none either."""
    seen = []

    class Watched(algorithm_class("feddst")):
        def train_and_readjust(self, hp, down, state, data):
            up, *rest = super().train_and_readjust(hp, down, state, data)
            for layer, before in down["masks"].items():
                after, held = up["mask"][layer], up["held"][layer]
                assert after.sum() == before.sum() == round(0.25 * 48)
                assert 0 < (before - after).clamp(min=0).sum() <= round(turnover * 12), "some come back"
                assert torch.equal(held, before * after)
                seen.append(layer)
            return up, *rest

    hyper = {"capacities": [0.25], "layers": "uniform", "masked_loss": False, "readjust": 0.5, "readjust_every": 2}
    turnover = algorithm("feddst", **hyper).turnover(2)
    engine = EngineConfig(mode="loop", chunk=1)
    list(run_inline(Watched, task(), DATA, CLIENTS, {**LOCAL, **hyper}, rounds=3, engine=engine))
    assert len(seen) == 5 * 2


@methods
def test_a_group_that_diverged_leaves_the_others_their_round(name, more):
    class Breaking(algorithm_class(name)):
        def learn(self, hp, down, data):
            learnt, here, metrics = super().learn(hp, down, data)
            broken = torch.where(down["macs"] < self.macs({}), float("nan"), 1.0)
            return {layer: p * broken for layer, p in learnt.items()}, here, metrics

    hyper = {**LOCAL, "capacities": [0.5, 1.0], "redraw": False, **more}
    broken = run_inline(Breaking, task(), DATA, CLIENTS, hyper, rounds=2)
    start = broken.server["w"]
    for _ in range(2):
        assert next(broken)["dropped"] > 0
        assert distance(broken.server["w"], start) > 0
        assert all(p.isfinite().all() for p in broken.server["w"].values())


@methods
def test_layers_are_known_before_a_step_is_compiled(name, more):
    assert {"layout", "sizes"} <= vars(algorithm(name, **more)).keys()
    assert "layout" in vars(algorithm("heterofl"))


def test_readjusting_by_hand():
    mask = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    w = torch.tensor([[0.3, -0.1, 0.2], [0.0, 0.0, 0.0]])
    slope = torch.tensor([[9.0, 0.1, 0.7], [0.2, -0.9, 0.5]])
    assert readjusted(mask, w, slope, 1).tolist() == [[1, 0, 1], [0, 1, 0]]
    assert readjusted(mask, w, slope, torch.tensor(2)).tolist() == [[1, 0, 1], [0, 1, 0]], "one comes back"
    assert readjusted(mask, w, slope, torch.tensor(0)).tolist() == mask.tolist()
    everything = torch.ones(2, 3)
    assert readjusted(everything, w, slope, 2).tolist() == everything.tolist()


def test_the_servers_next_mask_by_hand():
    size = torch.tensor([0.5, 0.4, 0.0, 0.0, 0.3, 0.2])
    votes = torch.tensor([2.0, 0.0, 1.0, 2.0, 0.0, 0.0])
    stays = torch.tensor([False, False, False, False, True, False])
    assert chosen(size, votes, stays, 3).tolist() == [1, 0, 0, 1, 1, 0]
    assert chosen(size, votes, stays, 2).tolist() == [1, 0, 0, 0, 1, 0]
    assert chosen(size, votes, stays, 5).tolist() == [1, 1, 1, 1, 1, 0], "the others make up for it"


def test_the_share_that_goes_and_comes_falls_by_a_cosine():
    one = algorithm("feddst", readjust=0.4, readjust_every=5, readjust_until=20)
    assert [one.turnover(round) for round in (4, 5, 10, 20, 25)] == pytest.approx(
        [0, 0.2 * (1 + 2**-0.5), 0.2, 0, 0], abs=1e-12
    )


def test_the_largest_are_those_of_a_stable_sort():
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        clients, n = (int(torch.randint(1, most, (1,), generator=generator)) for most in (4, 30))
        # Few values, with many ties.
        scores = torch.randint(-1, 5, (clients, n), generator=generator).float()
        ones = torch.randint(0, n + 3, (), generator=generator)
        order = scores.argsort(dim=-1, descending=True, stable=True)
        expected = torch.zeros_like(scores).scatter(-1, order, (torch.arange(n) < ones).float().expand(scores.shape))
        assert torch.equal(largest(scores, ones), expected)
        assert torch.equal(largest(scores, int(ones)), expected)
        assert torch.equal(vmap(lambda row, ones=ones: largest(row, ones))(scores), expected)
        assert torch.equal(vmap(largest)(scores, ones.expand(clients)), expected)


def test_nan_is_largest_and_their_number_is_kept():
    scores = torch.tensor([[1.0, torch.nan, 3.0, 2.0], [torch.nan, torch.nan, 3.0, torch.nan]])
    assert largest(scores, 2).tolist() == [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]


def test_variants_with_different_numbers_find_them_within_a_gradient():
    scores = torch.randn(2, 5).abs()
    ones = torch.tensor([[1.0], [3.0]])

    def masked(w, ones):
        return (largest(w.detach(), ones[0] * 1.0) * w).sum()

    def gradient(w, ones):
        return gradient_and_value(masked)(w, ones)[0]

    found = vmap(gradient)(scores, ones)
    assert torch.equal(found, torch.stack([largest(scores[0], 1), largest(scores[1], 3)]))


def test_of_equal_scores_the_first_are_largest():
    assert largest(torch.tensor([[1.0, 2.0, 2.0, 2.0], [0.0, 0.0, -1.0, 0.0]]), 2).tolist() == [
        [0, 1, 1, 0],
        [1, 1, 0, 0],
    ]


@pytest.mark.parametrize("average", ["holders", "all"])
def test_averages_by_hand(average):
    """Client 0 of 3 samples holds half of a layer, client 1 of 1 sample all of it."""
    one = algorithm("feddst", capacities=[1.0, 0.5], average=average, server_lr=0.5)
    w = one.task.init()
    groups = one.groups({"w": w, "mask": {name: torch.ones_like(w[name]) for name in SIZES}}, cohort(clients=40))
    results = []
    for group, move, sent in zip(groups, (1.0, 5.0), (1, 3), strict=True):
        held = tree_map(torch.ones_like, w)
        held["0.weight"] = held["0.weight"] * (torch.arange(6) < (6 if sent == 1 else 3))
        held["2.weight"] = zeros_like(held["2.weight"])
        group.weights[:] = [sent] + [0] * (len(group.clients) - 1)
        up = {"moved": tree_map(lambda h, s=sent * move: s * h, held), "held": tree_map(lambda h, s=sent: s * h, held)}
        kept = np.arange(len(group.clients)) == 0
        results.append(Aggregate(up, kept, {}))
    moved = tree_map(torch.sub, one.average(w, groups, results), w)
    both, alone = 0.5 * (1 * 1 + 3 * 5) / 4, 0.5 * 1 / (1 if average == "holders" else 4)
    assert torch.allclose(moved["0.weight"], torch.tensor([both] * 3 + [alone] * 3).expand(8, 6), atol=1e-6)
    assert torch.allclose(moved["0.bias"], torch.tensor(both), atol=1e-6)
    assert (moved["2.weight"] == 0).all()


@pytest.mark.parametrize("by", ["moved", "weights"])
def test_zerofl_sends_the_largest_entries(by):
    seen = []

    class Watched(algorithm_class("zerofl")):
        def learn(self, hp, down, data):
            learnt, here, metrics = super().learn(hp, down, data)
            seen.append(tree_map(lambda a, b: a - b, learnt, down["w"]) if by == "moved" else learnt)
            return learnt, here, metrics

        def train(self, hp, down, state, data):
            up, *rest = super().train(hp, down, state, data)
            for layer in SIZES:
                sent, all_of_it = up["held"][layer] == 1, seen[-1][layer].abs()
                assert sent.sum() == 12
                assert all_of_it[sent].min() >= all_of_it[~sent].max()
            return up, *rest

    hyper = {**LOCAL, "capacities": [0.25], "sent": by}
    list(run_inline(Watched, task(), DATA, CLIENTS, hyper, rounds=1, engine=EngineConfig(mode="loop", chunk=1)))
    assert len(seen) == 5


def test_zerofl_computes_with_sparse_weights_and_learns_dense_ones():
    """SWAT by hand: the layer's output, and the gradients by its input, are of sparse weights; those by its weights of
    sparse activations."""
    torch.manual_seed(1)
    x, w, ahead = torch.randn(5, 6, requires_grad=True), torch.randn(8, 6, requires_grad=True), torch.randn(5, 8)
    for kind in (SwatLinear(6, 8), SwatConv2d(6, 8, 1)):
        kind.register_buffer("density", torch.ones(()))
        image, weight = (x, w) if kind.weight.ndim == 2 else (x[..., None, None], w[..., None, None])
        given = {"weight": weight, "density": torch.tensor(0.5)}
        out = torch.func.functional_call(kind, given, (image,)).flatten(1)
        assert torch.allclose(out, F.linear(x, w, kind.bias), atol=1e-6)
        by_x, by_w = torch.autograd.grad(out, (x, w), ahead)
        kept = x.abs() >= x.abs().sort(-1).values[:, 3:4]
        assert (kept.sum(1) == 3).all()
        assert torch.allclose(by_x, ahead @ w, atol=1e-5)
        assert torch.allclose(by_w, ahead.T @ (x * kept), atol=1e-5)


def test_zerofls_gradient_is_that_of_all_weights_at_the_sparse_ones():
    one = algorithm("zerofl", sparse_activations=False, masked_loss=False)
    w = {name: p.requires_grad_() for name, p in one.task.init().items()}
    counts = {name: torch.tensor(12) for name in SIZES}
    batch = type("B", (), {"x": torch.randn(5, 6), "y": torch.arange(5) % 4, "mask": None})()
    loss = one.local_loss(one.hyper, {"ones": counts, "density": torch.tensor(0.25)}, None)(w, batch)
    masks = {name: largest(w[name].detach().abs().flatten(), 12).reshape(w[name].shape) for name in SIZES}
    thin = {name: (p * masks.get(name, 1)).detach().requires_grad_() for name, p in w.items()}
    same = one.task.loss(thin, batch)
    assert torch.allclose(loss, same)
    for ours, theirs in zip(
        torch.autograd.grad(loss, list(w.values())), torch.autograd.grad(same, list(thin.values())), strict=True
    ):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_flash_finds_the_densities_of_layers():
    """By hand from what the clients learnt; and the model begins anew at random places of the initial one."""
    seen = []

    class Watched(algorithm_class("flash")):
        def warm_up(self, hp, down, state, data):
            up, *rest = super().warm_up(hp, down, state, data)
            learnt, *_ = self.learn(hp, down, data)
            sizes = {name: learnt[name][down["masks"][name] == 1].abs().mean() for name in SIZES}
            total = sum(sizes.values())
            seen.append({name: (0.5 * 24 + 0.5 * 48 * sizes[name] / total) / 24 for name in SIZES})
            return up, *rest

        def train(self, hp, down, state, data):
            initial = self.task.init()
            for layer, mask in down["masks"].items():
                assert torch.equal(down["w"][layer], initial[layer] * mask)
            return super().train(hp, down, state, data)

    hyper = {**LOCAL, "capacities": [0.5], "warmup_epochs": 2}
    one = run_inline(Watched, task(), DATA, CLIENTS, hyper, rounds=1, engine=EngineConfig(mode="loop", chunk=1))
    assert next(one)["exchanges"] == 2
    assert len(seen) == 5
    found = {name: float(sum(s[name] for s in seen) / 5) for name in SIZES}
    assert found["0.weight"] != pytest.approx(1, abs=1e-3)
    assert {name: float(value) for name, value in one.server["profile"].items()} == pytest.approx(found, rel=1e-5)
    assert ones(one.server["mask"]) == spread(0.5, SIZES, found)


@methods
@pytest.mark.parametrize("masked_loss", [True, False])
def test_what_is_transmitted(name, more, masked_loss):
    one = run(name, rounds=2, capacities=[0.5, 1.0], redraw=False, masked_loss=masked_loss, **more)
    classes = 4 * masked_loss
    for number in (1, 2):
        record = next(one)
        groups = one.servers[0].algorithm.inner.groups(one.server, cohort(number))
        down = up = 0
        for group in groups:
            values = DENSE + (48 if group.density < 1 else 96)
            bits = BITS if group.density < 1 else 0
            whole = name == "zerofl"
            readjusts = number == 2 and (name == "feddst" or more is JOINT)
            down += len(group.clients) * (DENSE + 96 if whole else values + bits)
            up += len(group.clients) * (values + classes + (bits if whole or readjusts else 0))
        stage1 = name == "flash" and number == 1
        assert len(groups) == 2
        assert record["scalars_down"] == down * (2 if stage1 else 1)
        assert record["scalars_up"] == up + (5 * 2 if stage1 else 0)
        assert record["bytes_up"] == 4 * record["scalars_up"]


@methods
def test_they_learn(name, more):
    records = list(run(name, rounds=30, capacities=[0.5, 0.25], lr=0.5, **more))
    assert records[-1]["test_loss"] < 0.6 * records[0]["test_loss"]


def test_what_computing_costs():
    by = {name: algorithm(name) for name in ("zerofl", "feddst")}
    half = {"0.weight": 24, "2.weight": 24}
    assert by["feddst"].macs(half) == 24 + 24 + 24
    assert by["zerofl"].macs(half) == 72
    assert algorithm("zerofl", sparse_activations=False).macs(half) == pytest.approx((72 + 72 + 120) / 3)
    images = Task(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4)), sample_shape=(2, 4, 4))
    conv = algorithm_class("feddst")(registries.algorithms.section("feddst")(), images)
    assert conv.macs({"0.weight": 10}) == 10 * 4 + 48


def test_models_without_layers_to_thin_are_refused():
    kind, hyper = algorithm_class("feddst"), registries.algorithms.section("feddst")
    mixing = Task(nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)), sample_shape=(6,))
    assert "task.model: feddst needs a model whose layers it can make sparse" in kind(hyper(), mixing).incompatibility()
    flat = Task(nn.Sequential(nn.Linear(6, 4)), sample_shape=(6,))
    assert "algorithm.dense_output" in kind(hyper(), flat).incompatibility()
    assert kind(hyper(dense_output=False), flat).incompatibility() is None
