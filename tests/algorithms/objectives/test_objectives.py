"""Auxiliary losses: the numerical checks of side_losses.md, section 3, and the objectives of the methods."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import (
    check_resuming,
    dataset,
    distance,
    identical,
    model,
    objection,
    objective,
    partition,
    run_inline,
)
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.keyed_random import uniform
from hedgerow.algorithms.core.messages import Aggregate
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.objectives.distilled import divergence_from_teacher
from hedgerow.algorithms.objectives.synthetic_samples import Gaussians, nearness, synthetic_loss
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.platform.config.experiment import EngineConfig
from hedgerow.platform.config.registries import algorithm_class
from hedgerow.platform.data.augmentation import Augmentation

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 100)
X = (60 * Y[:, None, None, None] + RNG.integers(0, 60, (100, 1, 6, 6))).astype(np.uint8)
DATA = dataset(X, Y, test=20)
CLIENTS = partition(np.array([20, 3, 17, 25, 15]))
AUGMENT = Augmentation(crop=1, flip=True, cutout=2)
KINDS = ("robustness", "distillation", "both", "stability")

METHODS = ("fedavg", "fedprox", "feddyn", "scaffold", "fedsplit", "central")


def module(seed, hidden=6):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, hidden), nn.GroupNorm(2, hidden), nn.Linear(hidden, 3))


def task(augment=AUGMENT, teacher=1):
    scale = torch.tensor([[[100.0]]])
    taught = module(teacher, 8) if teacher else None
    return Task(module(0), scale, scale, sample_shape=(1, 6, 6), augment=augment, teacher=taught)


def run(kind, side=None, mode=("loop", 1), rounds=3, folder=None, on=None, **hyper):
    values = {"lr": 0.1, "batch_size": 8, "epochs": 2, "objective": side, **hyper}
    engine = EngineConfig(mode=mode[0], chunk=mode[1])
    settings = {"rounds": rounds, "engine": engine, "clients_per_round": 0.6}
    return run_inline(kind, on or task(), DATA, CLIENTS, values, folder, **settings)


def views(batch_size=7, augment=AUGMENT):
    """A mini-batch with two views."""
    rows, keys, of = torch.arange(3, 3 + batch_size), torch.tensor([5, 123456]), task(augment)
    raw = torch.from_numpy(X)[rows]

    def view(number):
        return of.prepare(raw if augment is None else augment(raw, keys[number], rows))

    return of, Batch(view(0), torch.from_numpy(Y)[rows], rows=rows, keys=keys, view=view)


def value(of, w, batch, **side):
    own = objective(**side)
    return own.terms(own, of, w, batch, None)[1]


def gradient(of, w, batch, **side):
    return gradient_and_value(lambda w: value(of, w, batch, **side))(w)[0]


# ---- the numerical checks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "kind"), [*((FedAvg, kind) for kind in KINDS), (FedDyn, "both")])
def test_with_alpha_1_a_side_loss_changes_nothing(method, kind):
    """Check 1."""
    sides = ({"kind": kind, "alpha": 1.0}, None, {"kind": kind, "alpha": 0.5})
    with_side, without, loud = (run(method, side, rounds=1) for side in sides)
    [list(one) for one in (with_side, without, loud)]
    assert identical(model(with_side), model(without))
    assert distance(model(loud), model(without)) > 1e-4


def test_of_a_sample_told_once_there_is_no_robustness_to_learn():
    """Check 2: T the identity."""
    of, batch = views(augment=Augmentation())
    w = of.init()
    assert value(of, w, batch, kind="robustness") == 0
    assert max(float(g.abs().max()) for g in gradient(of, w, batch, kind="robustness").values()) < 1e-6
    of, batch = views()
    assert value(of, w, batch, kind="robustness") > 1e-3


def test_who_teaches_itself_has_nothing_to_learn():
    """Check 3."""
    of, batch = views(augment=Augmentation())
    of.teacher.load_state_dict(module(1, 8).state_dict())
    itself = Task(of.teacher, of.mean, of.std, teacher=module(1, 8))
    w = itself.init()
    assert value(itself, w, batch, kind="distillation") == 0
    assert max(float(g.abs().max()) for g in gradient(itself, w, batch, kind="distillation").values()) < 1e-6


def test_at_high_temperatures_distillation_matches_logits():
    """Check 4: the slope by the logits, before the mean over the samples, is (z - zbar) / C."""
    student, taught = (torch.randn(5, 4, dtype=torch.double) for _ in range(2))
    student, taught = (z - z.mean(-1, keepdim=True) for z in (student, taught))
    batch = Batch(torch.zeros(5, 1), torch.zeros(5).long())
    fixed, gaps = SimpleNamespace(teacher_logits=lambda x: taught), []
    for tau in (1e2, 1e3):
        own = objective(kind="distillation", temperature=tau)
        slope, _ = gradient_and_value(lambda z, o=own: divergence_from_teacher(o, fixed, z["z"], batch))({"z": student})
        gaps.append(float((5 * slope["z"] - (student - taught) / 4).abs().max()))
    assert gaps[0] < 0.05
    assert gaps[1] < gaps[0] / 5


def test_both_is_the_sum():
    """Check 5: (7.4) is (7.3) and the robustness term."""
    of, batch = views()
    w = of.init()
    parts = [float(value(of, w, batch, kind=kind)) for kind in ("distillation", "robustness")]
    assert float(value(of, w, batch, kind="both")) == pytest.approx(sum(parts), rel=1e-6)
    losses = {}
    for kind in ("distillation", "both"):
        own = objective(kind=kind, alpha=0.1)
        loss, _ = own.begin(of, SimpleNamespace(objective=own), {"w": w}, {}, None)
        losses[kind] = float(loss(w, batch))
    assert losses["both"] == pytest.approx(losses["distillation"] + 0.9 * parts[1], rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_no_side_loss_is_negative_whatever_the_weights(kind):
    """Check 6; and a hundred times the weights, whose probabilities are 0 and 1, have a finite gradient."""
    of, batch = views()
    for scale in (1.0, 100.0):
        w = tree_map(lambda p, s=scale: s * p, of.init())
        assert value(of, w, batch, kind=kind) >= 0
        assert all(g.isfinite().all() for g in gradient(of, w, batch, kind=kind, temperature=0.5).values())


@pytest.mark.parametrize("kind", ["robustness", "both"])
def test_feddyns_server_state_is_the_mean_of_its_clients(kind):
    """Check 7: after every round, with three of five clients."""
    one = run(FedDyn, {"kind": kind, "alpha": 0.5}, alpha=0.1, rounds=4)
    for _ in range(4):
        next(one)
        total = tree_map(lambda g: g.sum(0), one.states.read(np.arange(len(CLIENTS)))["g"])
        assert distance(one.server["h"], tree_map(lambda t: t / len(CLIENTS), total)) < 1e-5


def test_feddyn_at_its_fixed_point_stays_there():
    """Check 8: where every client's loss is least at w, and h and all g are 0, a round changes nothing."""
    one = FedDyn(FedDyn.Hyper(alpha=0.1), task())
    server = one.init_server()
    exchanges = one.round(server, SimpleNamespace(clients=np.arange(3), population=5))
    next(exchanges)
    answer = Aggregate({"w": server["w"]}, np.ones(3, bool), {})
    with pytest.raises(StopIteration) as stop:
        exchanges.send(answer)
    assert identical(stop.value.value["w"], server["w"])
    assert identical(stop.value.value["h"], server["h"])


# ---- stability, limits ----------------------------------------------------------------------------------------------


def test_stability_grows_with_the_square_of_the_noise():
    of, batch = views()
    w = of.init()
    small, large = (float(value(of, w, batch, kind="stability", noise=noise)) for noise in (0.02, 0.04))
    assert large / small == pytest.approx(4, rel=0.1)


def test_a_detached_target_has_no_gradient():
    of, batch = views()
    w = of.init()
    free, fixed = (gradient(of, w, batch, kind="robustness", detach_target=d) for d in (False, True))
    assert distance(free, fixed) > 1e-4
    assert value(of, w, batch, kind="robustness") == value(of, w, batch, kind="robustness", detach_target=True)


def test_the_multiplier_rises_while_the_side_loss_is_above_its_limit():
    """lambda <- (lambda + dual_lr (S - limit))+, of each client that took part; what is far below it stays at 0."""
    tight = run(FedAvg, {"kind": "robustness", "limit": 0.0, "dual_lr": 2.0}, rounds=1)
    (record,) = list(tight)
    assert record["train_multiplier"] == pytest.approx(2 * record["train_side_loss"], rel=1e-5)
    assert record["train_side_loss"] > 0
    loose, without = run(FedAvg, {"kind": "robustness", "limit": 1e3}), run(FedAvg)
    records = list(loose)
    list(without)
    assert [r["train_multiplier"] for r in records] == [0, 0, 0]
    assert distance(model(loose), model(without)) < 1e-6


@pytest.mark.parametrize("mode", [("loop", 1), ("vmap", 3)])
def test_the_side_loss_is_a_mean_over_samples_whatever_the_mini_batches(mode):
    """Of clients of different sizes, whose last mini-batches are smaller than the others."""
    settings = {"side": {"kind": "distillation", "limit": 0.0}, "on": task(augment=None), "rounds": 1, "lr": 1e-9}
    (small,), (whole,) = (list(run(FedAvg, mode=mode, batch_size=size, **settings)) for size in (8, None))
    assert small["train_side_loss"] == pytest.approx(whole["train_side_loss"], rel=1e-5)


# ---- synthetic samples: experimental ---------------------------------------------------------------------------------


def test_the_generators_gaussians_are_those_of_the_features():
    of, batch = views(40)
    w = of.init()
    features = of.module[:-1](batch.x).detach()
    masked = replace(batch, mask=(torch.arange(40) < 25).float())
    for some, real in ((batch, slice(None)), (masked, slice(0, 25))):
        made = Gaussians.fit(of, w, [some])
        means = torch.stack([features[real][batch.y[real] == c].mean(0) for c in range(3)])
        spread = (features[real] - means[batch.y[real]]).square().mean(0).sqrt()
        assert torch.allclose(made.means, means, atol=1e-5)
        assert torch.allclose(made.spread, spread, atol=1e-3)
    labels, rows = torch.zeros(5000).long(), torch.arange(5000)
    drawn = made.sample(labels, torch.tensor(9), rows)
    assert torch.allclose(drawn.mean(0), made.means[0], atol=0.05)
    assert torch.allclose(drawn.std(0), made.spread, atol=0.05)


def test_synthetic_samples_are_as_many_as_wanted():
    """Of features without spread every sample has its class's loss, and only the ratio of the classes counts."""
    of, batch = views(12)
    w = of.init()
    sure = Gaussians(torch.zeros(3, 6), torch.zeros(6))
    losses = torch.nn.functional.cross_entropy(w["3.bias"].expand(12, 3), batch.y, reduction="none")
    for ratio in (1.0, 2.0):
        assert float(synthetic_loss(of, w, batch, sure, ratio)) == pytest.approx(float(losses.mean()), rel=1e-5)
    counted = uniform(batch.keys[1], batch.rows * 2, 2) < 0.5
    assert 0 < counted.sum() < 12
    half = float(losses[counted].mean())
    assert float(synthetic_loss(of, w, batch, sure, 0.5)) == pytest.approx(half, rel=1e-5)


@pytest.mark.parametrize("masked", [False, True])
def test_how_near_synthetic_samples_come_is_what_the_distances_say(masked):
    """Part A: the nearest neighbours of drawn samples relative to those of real ones, and duplicates."""
    of, batch = views(24)
    n = 15 if masked else 24
    w = of.init()
    features = of.module[:-1](batch.x).detach()[:n]
    given = replace(batch, mask=(torch.arange(24) < n).float() if masked else None)
    made = Gaussians.fit(of, w, [given])
    drawn = made.sample(batch.y[:n], batch.keys[1], batch.rows[:n] * 2)
    real = (features[:, None] - features).norm(dim=-1)
    usual = float(torch.stack([real[i][torch.arange(n) != i].min() for i in range(n)]).mean())
    nearest = (drawn[:, None] - features).norm(dim=-1).min(-1).values
    for duplicate in (0.5, 2.0):
        told = nearness(of, w, [given], made, duplicate)
        assert float(told["synthetic_distance"]) == pytest.approx(float(nearest.mean()) / usual, rel=1e-3)
        assert float(told["synthetic_duplicates"]) == pytest.approx(float((nearest < duplicate * usual).float().mean()))
    assert told["synthetic_duplicates"] > 0


def test_a_generator_that_repeats_samples_is_found_out():
    of, batch = views(6)
    batch = replace(batch, y=torch.arange(6) % 3)
    w = of.init()
    features = of.module[:-1](batch.x).detach()
    copies = nearness(of, w, [batch], Gaussians(features[:3], torch.zeros(6)), 0.1)
    assert float(copies["synthetic_distance"]) < 0.01
    assert float(copies["synthetic_duplicates"]) == 1
    alone = nearness(
        of, w, [replace(batch, mask=(torch.arange(6) < 1).float())], Gaussians(features[:3], torch.zeros(6)), 0.1
    )
    assert float(alone["synthetic_distance"]) == float(alone["synthetic_duplicates"]) == 0


def test_every_round_records_how_near_synthetic_samples_came():
    records = {mode: list(run(FedAvg, {"kind": "synthetic"}, (mode, 2), rounds=2)) for mode in ("loop", "vmap")}
    for looped, batched in zip(*records.values(), strict=True):
        for name in ("train_synthetic_distance", "train_synthetic_duplicates"):
            assert looped[name] == pytest.approx(batched[name], rel=1e-3)
        assert looped["train_synthetic_distance"] > 0
    assert not any("synthetic" in name for record in run(FedAvg, rounds=1) for name in record)
    list(run(algorithm_class("central"), {"kind": "synthetic"}, rounds=1))


# ---- the mechanism --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_a_side_loss_in_a_loop_and_under_vmap(method):
    side = {"kind": "both", **({"alpha": 0.3} if method == "central" else {"limit": 0.0})}
    # A step size at which FedSplit's reflections do not amplify rounding errors.
    loop, batched, plain = (
        run(algorithm_class(method), *how, rounds=2, lr=0.03) for how in ((side,), (side, ("vmap", 2)), ())
    )
    [list(one) for one in (loop, batched, plain)]
    assert distance(model(loop), model(batched)) < 1e-5
    assert distance(model(loop), model(plain)) > 1e-5


@pytest.mark.parametrize("kind", ["stability", "synthetic"])
def test_loop_equals_vmap(kind):
    runs = [run(FedAvg, {"kind": kind}, mode, rounds=2) for mode in (("loop", 1), ("vmap", 2))]
    [list(one) for one in runs]
    assert distance(model(runs[0]), model(runs[1])) < 1e-5


def test_a_run_is_resumed_as_if_it_had_never_stopped(tmp_path):
    check_resuming(
        lambda folder: run(FedDyn, {"kind": "robustness", "limit": 0.01}, folder=folder, rounds=4), 2, tmp_path
    )


def test_what_does_not_fit_is_refused():
    def refusal(side, method="fedavg", **of):
        return objection(algorithm_class(method), task(**of), objective(**side))

    assert "give `task.augment`" in refusal({"kind": "robustness"}, augment=None)
    assert "set `task.teacher` to a run" in refusal({"kind": "both"}, teacher=None)
    assert "no clients to keep multipliers" in refusal({"kind": "stability", "limit": 1.0}, "central")
    assert refusal({"kind": "stability"}, augment=None, teacher=None) is None
    whole = task()
    object.__setattr__(whole, "module", nn.Linear(36, 3))
    assert "ends in a linear layer" in objection(FedAvg, whole, objective(kind="synthetic"))
    with pytest.raises(ValueError, match="give either `alpha` or `limit`"):
        objective(kind="both", alpha=0.5, limit=1.0)
    assert math.isclose(objective(kind="both").alpha, 0.5)
