"""FedSep's masks: the resource loss, the kernels that are kept, both encoders, and whole rounds (fedsep.md, 6.2)."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import blobs, check_resuming, distance, partition, run_inline
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import dot, tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.heterogeneous.channel_masks import MaskProblem, descend, encode, excess, masked, most
from hedgerow.algorithms.nn import hypernetwork
from hedgerow.algorithms.nn.submodel import Layout
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class

DATA = blobs(samples=160, classes=4)
CLIENTS = partition(np.array([30, 25, 25, 20, 20]), seed=0)
LOCAL = {"lr": 0.2, "epochs": None, "steps": 3, "batch_size": 10, "mask_steps": 3, "mask_batch_size": 10}


def task():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    return Task(module, torch.from_numpy(DATA.mean), torch.from_numpy(DATA.std), sample_shape=(6,))


def run(mode=("vmap", 3), rounds=4, folder=None, clients=CLIENTS, data=DATA, **hyper):
    settings = {"rounds": rounds, "engine": EngineConfig(mode=mode[0], chunk=mode[1])}
    return run_inline(algorithm_class("fedsep_masks"), task(), data, clients, {**LOCAL, **hyper}, folder, **settings)


def test_the_resource_loss():
    """C13."""
    macs = torch.tensor(1000.0, requires_grad=True)
    above = excess(macs, 250.0)
    assert float(above.detach()) == pytest.approx(math.log(4), abs=1e-6)
    assert 10 * float(above.detach()) == pytest.approx(13.86294, abs=1e-4)
    above.backward()
    assert float(macs.grad) == pytest.approx(1 / 1000)
    below = torch.tensor(200.0, requires_grad=True)
    excess(below, 250.0).backward()
    assert float(below.grad) == 0


def test_the_resource_loss_of_a_model():
    layout = Layout.of(task())
    problem = MaskProblem(task(), layout, 0.25, 10.0)
    whole = {space: torch.ones(size) for space, size in layout.thinned.items()}
    batch = Batch(torch.randn(3, 6), torch.tensor([0, 1, 2]))
    w = task().init()
    assert float(problem(w, whole, batch) - task().loss(w, batch)) == pytest.approx(13.86294, abs=1e-4)
    few = {space: torch.zeros(size).index_fill(0, torch.arange(2), 1.0) for space, size in layout.thinned.items()}
    assert float(problem(w, few, batch) - task().loss(masked(layout, w, few), batch)) == 0


def test_the_kernels_that_are_on_most_are_kept():
    """C17."""
    a = {"0": torch.tensor([0.1, 0.9, 0.3, 0.8]), "1": torch.tensor([0.5, 0.6])}
    kept = most(a, {"0": torch.arange(2), "1": torch.arange(1)})
    assert {space: channels.tolist() for space, channels in kept.items()} == {"0": [1, 3], "1": [1]}


class Regression(Task):
    """1/2 mean (outputs - target)^2 of a linear chain, so that L(a . w) is quadratic in the a of its one layer."""

    def criterion(self, logits, batch):
        target = batch.y.to(logits.dtype)[:, None]
        return 0.5 * (logits - target).square().sum(-1).mean()


def toy(seed=0):
    """A mask problem over five units, strongly convex in a, in double precision; and another batch to learn from."""
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).double()
    one = Regression(module, sample_shape=(3,))
    layout = Layout.of(one)
    w = {name: torch.randn(p.shape, generator=generator).double() for name, p in one.init().items()}
    samples = [torch.randn(40, 3, generator=generator).double() for _ in range(2)]
    labels = [torch.randint(-2, 3, (40,), generator=generator) for _ in range(2)]
    validation, train = (Batch(x, y) for x, y in zip(samples, labels, strict=True))
    problem = MaskProblem(one, layout, 1.0, 10.0)

    def g(w, a):
        # The ridge makes it strongly convex, and keeps R idle.
        return problem(w, a, validation) + 0.05 * dot(a, a)

    return one, layout, w, g, train


def decoded(g, w):
    """The a that minimises the quadratic g(w, .)."""
    zero = {"0": torch.zeros(5).double()}
    slope = torch.func.grad(lambda a: g(w, {"0": a}))(zero["0"])
    hessian = torch.func.hessian(lambda a: g(w, {"0": a}))(zero["0"])
    return {"0": torch.linalg.solve(hessian, -slope)}


def test_the_full_encoder_is_the_derivative_of_what_is_learnt():
    """C14: Enc{-grad L} against central differences of h(w) = L(a_w . w), in every coordinate of a few."""
    one, layout, w, g, train = toy()

    def h(w):
        return one.loss(masked(layout, w, decoded(g, w)), train)

    a = decoded(g, w)
    slope = torch.func.grad(lambda y: one.loss(y, train))(masked(layout, w, a))
    found = encode(g, layout, w, a, tree_map(torch.neg, slope), steps=20, damping=0.0)
    for name in w:
        for place in range(min(4, w[name].numel())):
            step = torch.zeros_like(w[name]).flatten().index_fill(0, torch.tensor([place]), 1e-5).reshape(w[name].shape)
            up, down = ({**w, name: w[name] + sign * step} for sign in (1, -1))
            assert float(found[name].flatten()[place]) == pytest.approx(float(h(up) - h(down)) / 2e-5, abs=1e-7)
    first = masked(layout, slope, a)
    assert float(dot(found, first) / (dot(found, found) * dot(first, first)).sqrt()) < 0.95


def test_the_first_term_is_enough_where_one_learns_from_what_one_decodes_by():
    """C14: at an inner stationary point w . grad L = 0, and the second term vanishes for one step."""
    one, layout, w, _, train = toy()

    def g(w, a):
        return one.loss(masked(layout, w, a), train)

    a = decoded(g, w)
    slope = torch.func.grad(lambda y: one.loss(y, train))(masked(layout, w, a))
    whole = encode(g, layout, w, a, slope, steps=20, damping=0.0)
    first = masked(layout, tree_map(torch.neg, slope), a)
    assert distance(whole, first) < 1e-8
    assert max(float(p.abs().max()) for p in first.values()) > 0.1


def test_the_hypernetwork_begins_with_all_channels_on_and_learns_a_mask():
    sizes = {"a": 5, "b": 7}
    w, z = hypernetwork.initial(sizes), hypernetwork.inputs(2)
    assert torch.allclose(z @ z.T, torch.eye(2), atol=1e-5)
    a = hypernetwork.shares(w, z, list(sizes))
    assert {space: tuple(on.shape) for space, on in a.items()} == {"a": (5,), "b": (7,)}
    assert all((on > 0.99).all() for on in a.values())
    wanted = {"a": torch.tensor([1.0, 0, 1, 0, 1]), "b": torch.tensor([0.0, 1, 0, 1, 0, 1, 0])}

    def loss(w, batch):
        found = hypernetwork.shares(w, z, list(sizes))
        return sum((found[space] - wanted[space]).square().sum() for space in sizes)

    learnt = descend(loss, w, [Batch(torch.zeros(1), torch.zeros(1))] * 150, 0.01)
    found = hypernetwork.shares(learnt, z, list(sizes))
    kept = most(found, {"a": torch.arange(3), "b": torch.arange(3)})
    assert {space: channels.tolist() for space, channels in kept.items()} == {"a": [0, 2, 4], "b": [1, 3, 5]}


def test_the_unit_of_the_network_is_torchs():
    w = hypernetwork.initial({"a": 3})
    unit = nn.GRU(hypernetwork.INPUTS, hypernetwork.HIDDEN)
    names = {"input": "weight_ih_l0", "input_bias": "bias_ih_l0", "hidden": "weight_hh_l0", "hidden_bias": "bias_hh_l0"}
    unit.load_state_dict({torchs: w[f"forward.{ours}"] for ours, torchs in names.items()})
    rows = torch.randn(4, hypernetwork.INPUTS)
    assert torch.allclose(torch.stack(hypernetwork._read(w, "forward", list(rows))), unit(rows)[0], atol=1e-5)


WAYS = [{}, {"mask_from": "direct"}, {"mask": "relaxed", "mask_from": "direct"}]
WAYS += [{"mask": "relaxed", "mask_from": "direct", "encoder": "full", "encode_steps": 3, "damping": 1.0}]


@pytest.mark.parametrize("way", WAYS)
def test_loop_and_vmap_agree(way):
    loop, vmap = (run(mode, rounds=3, **way) for mode in (("loop", 1), ("vmap", 3)))
    [list(one) for one in (loop, vmap)]
    assert distance(loop.server["w"], vmap.server["w"]) < 1e-4


def test_a_resumed_run_is_undisturbed(tmp_path):
    check_resuming(lambda folder: run(folder=folder), 2, tmp_path)


def test_clients_of_full_capacity_are_fedavg():
    """C16: all channels are kept, and Remark 3 averages over all."""
    clients = partition(np.full(5, 24), seed=0)
    masks = run(clients=clients, capacities=[1.0], masked_loss=False, average="all")
    plain = run_inline(
        algorithm_class("fedavg"), task(), DATA, clients, {"lr": 0.2, "steps": 3, "batch_size": 10}, rounds=4,
        engine=EngineConfig(mode="vmap", chunk=3),
    )  # fmt: skip
    [list(one) for one in (masks, plain)]
    assert distance(masks.server["w"], plain.server["w"]) < 1e-6


def test_masks_are_kept_for_as_many_rounds_as_told():
    """Who solves its mask problem receives the whole model, others their kernels alone."""
    one = run(rounds=5, capacities=[0.5], refresh_every=2)
    d, half = 8 * 6 + 8 + 6 * 8 + 6 + 4 * 6 + 4, 4 * 6 + 4 + 3 * 4 + 3 + 4 * 3 + 4
    records, masks = [], []
    for record in one:
        records.append(record)
        masks.append(one.states.read(np.arange(5))["on"]["0"].clone())
    assert [record["scalars_down"] for record in records] == [5 * d, 5 * half] * 2 + [5 * d]
    # A sub-model's numbers, which classes there are, and, where they are new, the channels of both layers.
    assert [record["scalars_up"] for record in records] == [5 * (half + 4 + 7), 5 * (half + 4)] * 2 + [5 * (half + 11)]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])


def test_clients_choose_what_serves_their_own_samples():
    """A unit that both hurt by being on is off, whatever its place: the mask problem finds the good ones."""
    one = run(capacities=[0.5], mask_steps=60, mask_from="direct", mask_lr=0.2, rounds=1, resource_weight=0.0, lr=1e-6)
    w = one.server["w"]
    generator = torch.Generator().manual_seed(2)
    noise = torch.tensor([0, 1, 2])
    w["4.weight"][:, noise] = 30 * torch.randn(4, 3, generator=generator)
    next(one)
    on = one.states.read(np.arange(5))["on"]["2"]
    assert (on[:, noise].mean(1) < on[:, 3:].mean(1)).all()


@pytest.mark.exhaustive("convergence")
@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("way", WAYS[:3])
def test_they_learn(way):
    records = list(run(rounds=30, capacities=[0.5, 1.0], lr=0.5, **way))
    assert records[-1]["test_loss"] < 0.6 * records[0]["test_loss"]


def test_a_slope_of_chosen_kernels_is_refused():
    kind = algorithm_class("fedsep_masks")
    assert "set mask to relaxed" in kind(kind.Hyper(encoder="full"), task()).incompatibility()


def test_a_budget_of_multiply_adds_takes_the_root_of_the_channels():
    kind = algorithm_class("fedsep_masks")
    macs, width = (kind(kind.Hyper(budget=budget, capacities=[0.25]), task()) for budget in ("macs", "width"))
    everybody = Cohort(1, np.arange(3), np.ones(3), 3)
    kept = [{space: len(first) for space, first in one.groups(everybody)[0].channels.items()} for one in (macs, width)]
    assert kept == [{"0": 4, "2": 3}, {"0": 2, "2": 2}]
    # What scalers divide by, and what the resource loss compares with.
    known = [one.ask(one.task.init(), one.groups(everybody)[0], True).local_inputs for one in (macs, width)]
    assert [(float(k["width"]), float(k["capacity"])) for k in known] == [(0.5, 0.25), (0.25, 0.25)]


@pytest.mark.parametrize("way", WAYS)
def test_classes_that_nobody_has_stay(way):
    rows = np.flatnonzero(DATA.y_train < 2)[:40]
    data = replace(DATA, x_train=DATA.x_train[rows], y_train=DATA.y_train[rows])
    one = run(rounds=2, data=data, clients=partition(np.full(2, 20)), capacities=[0.5, 1.0], **way)
    start = one.server["w"]["4.weight"]
    list(one)
    assert torch.equal(one.server["w"]["4.weight"][2:], start[2:])
    assert not torch.equal(one.server["w"]["4.weight"][:2], start[:2])


def test_of_channels_that_are_equally_on_the_first_are_kept():
    kept = most({"0": torch.ones(512)}, {"0": torch.arange(4)})
    assert kept["0"].tolist() == [0, 1, 2, 3]
