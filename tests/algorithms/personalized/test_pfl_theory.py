"""The analysis of PFL as numbers (pfl.md, section 5): quadratics adapted by MAML, whose loss is known, in double."""

from typing import Any

import numpy as np
import pytest
import torch
from exact import DoubleQuadratics, Exact, State
from personal import ADAPTED, ETA, KEEP, OPTIMUM, SAMPLES, TASK, A, C, D, ExactMeta, M, P, slope, vector
from torch import nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import scale
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.online.online_algorithm import OnlineSGD
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.local_sgd import LocalSGD, Proximal, minimize
from hedgerow.algorithms.personalized.adaptation import meta_loss
from hedgerow.algorithms.personalized.per_fedavg import PerFedAvg
from hedgerow.algorithms.personalized.pfldyn import PFLDyn
from hedgerow.algorithms.personalized.pflscaf import PFLScaf


def personal(kind: Any, **hyper: Any) -> ExactMeta:
    return ExactMeta(kind, TASK, SAMPLES, **({"adapt": "maml", "adapt_lr": ETA, "epochs": None, "lr": 0.5} | hyper))


def client(state: State, k: int, name: str) -> np.ndarray:
    return vector(state.clients[k][name])


# ---- MAML -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 3])
def test_the_meta_gradient_is_that_of_the_closed_form(steps):
    run, rng = personal(PFLDyn, adapt_steps=steps, steps=1), np.random.default_rng(0)
    objective, w = run.algorithm.objective(run.algorithm.hyper), rng.normal(size=D)
    for k in range(M):
        batch = next(run.data(k, run.algorithm.hyper.batches).batches("train"))
        found = vector(gradient_and_value(objective)({"x": torch.from_numpy(w)}, batch)[0])
        kept = np.linalg.matrix_power(KEEP[k], steps)
        assert found == pytest.approx(kept @ A[k] @ kept @ (w - C[k]), abs=1e-12)
        h = 1e-6 * np.eye(D)
        values = [[float(objective({"x": torch.from_numpy(w + s * e)}, batch)) for s in (1, -1)] for e in h]
        assert found == pytest.approx([(up - down) / 2e-6 for up, down in values], abs=1e-8)
        # The first-order shortcut, the gradient of the adapted model alone, is another.
        assert np.abs(found - A[k] @ kept @ (w - C[k])).max() > 1e-2


# ---- reductions -----------------------------------------------------------------------------------------------------

PAIRS = [(PFLDyn, FedDyn, {"alpha": 0.1}), (PFLScaf, Scaffold, {}), (PerFedAvg, FedAvg, {})]


@pytest.mark.parametrize(("mine", "plain", "hyper"), PAIRS)
def test_each_method_is_the_plain_one_of_the_losses_after_adaptation(mine, plain, hyper):
    after = Exact(plain, DoubleQuadratics(D), ADAPTED, steps=3, lr=0.5, weight_decay=0.01, **hyper)
    states = [run.run(6, P, seed=3) for run in (personal(mine, steps=3, weight_decay=0.01, **hyper), after)]
    assert states[0].w == pytest.approx(states[1].w, abs=1e-12)
    for k in range(M):
        assert all(client(states[0], k, n) == pytest.approx(client(states[1], k, n)) for n in states[0].clients[k])


@pytest.mark.parametrize(("mine", "plain", "hyper"), PAIRS)
def test_without_adaptation_or_with_none_in_training_each_is_the_plain_one(mine, plain, hyper):
    plain_run = Exact(plain, TASK, SAMPLES, steps=3, lr=0.5, **hyper).run(6, P)
    for without in ({"adapt": "none"}, {"adapt_in": "inference"}, {"adapt_lr": 1e-300}):
        run = personal(mine, steps=3, **hyper, **without).run(6, P)
        assert np.array_equal(run.w, plain_run.w)
    assert not np.allclose(personal(mine, steps=3, **hyper).run(6, P).w, plain_run.w, atol=1e-3)


# ---- fixed points ---------------------------------------------------------------------------------------------------

FIXED = [
    (1, M, 130, 0.3, 0.5), (10, M, 40, 0.3, 0.5), (50, M, 30, 0.5, 0.5),
    (1, P, 110, 0.5, 1.0), (5, P, 170, 0.3, 0.5), (10, P, 80, 1.0, 0.5), (50, P, 80, 1.0, 0.5),
]  # fmt: skip


@pytest.mark.grid("active")
@pytest.mark.parametrize(("steps", "active", "rounds", "alpha", "lr"), FIXED)
def test_pfldyn_reaches_the_optimum_after_adaptation(steps, active, rounds, alpha, lr):
    state = personal(PFLDyn, steps=steps, alpha=alpha, lr=lr).run(rounds, active)
    assert np.abs(state.w - OPTIMUM).max() < 1e-7
    assert max(np.abs(model - OPTIMUM).max() for model in state.models) < 1e-7
    assert np.abs(vector(state.server["h"])).max() < 1e-7
    assert np.abs(np.mean([slope(k, state.w) for k in range(M)], axis=0)).max() < 1e-7
    assert min(np.abs(slope(k, state.w)).max() for k in range(M)) > 1e-2
    assert np.abs(OPTIMUM - np.linalg.solve(A.sum(0), np.einsum("kij,kj->i", A, C))).max() > 1e-2


SCAFFOLDS = [
    (1, M, 100, 0.5), (10, M, 20, 0.3), (50, M, 20, 0.05),
    (5, P, 120, 0.3), (1, P, 100, 0.5), (10, P, 75, 0.1), (50, P, 70, 0.02),
]  # fmt: skip


@pytest.mark.grid("steps", "active")
@pytest.mark.parametrize(("steps", "active", "rounds", "lr"), SCAFFOLDS)
def test_pflscaf_reaches_the_same(steps, active, rounds, lr):
    state = personal(PFLScaf, steps=steps, lr=lr).run(rounds, active)
    assert np.abs(state.w - OPTIMUM).max() < 1e-7
    assert np.abs(vector(state.server["c"])).max() < 1e-7
    for k in range(M):
        assert client(state, k, "c") == pytest.approx(slope(k, OPTIMUM), abs=1e-7)


def test_pflscaf_reaches_it_with_momentum_too():
    state = personal(PFLScaf, steps=10, lr=0.02, momentum=0.9).run(80, P)
    assert np.abs(state.w - OPTIMUM).max() < 1e-6
    for k in range(M):
        assert client(state, k, "c") == pytest.approx(slope(k, OPTIMUM), abs=1e-5)


def test_fifty_steps_leave_next_to_nothing_of_the_local_gradient():
    """Of what a client of PFLDyn minimises, at the model that it returns, in units of the model's norm."""
    left = {}
    for steps, lr in ((1, 0.1), (10, 0.1), (50, 0.1), (50, 0.5)):
        run = personal(PFLDyn, steps=steps, alpha=0.1, lr=lr)
        before = run.run(3, P)
        after = run.after(before, (1, 4))
        gradients = {k: slope(k, w) - client(before, k, "g") + 0.1 * (w - before.w) for k, w in enumerate(after.models)
                     if k in (1, 4)}  # fmt: skip
        left[steps, lr] = max(np.linalg.norm(g) / np.linalg.norm(after.models[k]) for k, g in gradients.items())
    # With the thesis's steps of .1, and on the way there; and with as many of .5.
    assert left[1, 0.1] > left[10, 0.1] > 5 * left[50, 0.1]
    assert left[50, 0.1] < 0.05
    assert left[50, 0.5] < 1e-6


def test_per_fedavg_is_biased_but_for_a_single_step():
    gaps = [np.abs(personal(PerFedAvg, steps=steps).run(rounds, M).w - OPTIMUM).max()
            for steps, rounds in ((1, 130), (10, 9), (50, 2))]  # fmt: skip
    assert gaps[0] < 1e-9
    assert 1e-3 < 2 * gaps[1] < 2 * gaps[2]
    # With some of the clients it never comes to rest.
    run, rng = personal(PerFedAvg, steps=10), np.random.default_rng(0)
    state, path = run.run(20, P), []
    for _ in range(5):
        state = run.after(state, rng.choice(M, P, replace=False))
        path.append(state.w)
    assert np.linalg.norm(np.diff(path, axis=0), axis=1).max() > 0.1


# ---- states ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 7])
def test_the_servers_state_is_the_mean_of_the_clients(steps):
    for kind, server, own in ((PFLDyn, "h", "g"), (PFLScaf, "c", "c")):
        run, rng = personal(kind, steps=steps), np.random.default_rng(2)
        state = run.start()
        for _ in range(5):
            state = run.after(state, rng.choice(M, P, replace=False))
            mean = np.mean([client(state, k, own) for k in range(M)], axis=0)
            assert vector(state.server[server]) == pytest.approx(mean, abs=1e-13)


def test_pfldyns_states_are_meta_gradients_where_local_problems_are_solved():
    run, state = personal(PFLDyn, steps=60, alpha=1.0), personal(PFLDyn, steps=60, alpha=1.0).start()
    for cohort in ((0, 3), (3, 5)):
        state = run.after(state, cohort)
        for k in cohort:
            assert client(state, k, "g") == pytest.approx(slope(k, state.models[k]), abs=1e-10)


def test_pflscafs_states_are_means_of_the_gradients_along_the_path():
    for steps, lr in ((1, 0.5), (5, 0.4)):
        run = personal(PFLScaf, steps=steps, lr=lr)
        before = run.run(3, P)
        after = run.after(before, (1, 4))
        for k in (1, 4):
            w, correction, path = before.w, vector(before.server["c"]) - client(before, k, "c"), []
            for _ in range(steps):
                path.append(slope(k, w))
                w = w - lr * (path[-1] + correction)
            assert client(after, k, "c") == pytest.approx(np.mean(path, axis=0), abs=1e-12)


# ---- the debiased objective -----------------------------------------------------------------------------------------


def test_the_linear_term_at_a_model_keeps_the_client_there():
    # At w* that is wanted (Eq. 3.1); at the server's model it freezes the client: hence PFLDyn's own, older one.
    run = personal(PFLDyn, steps=20)
    objective, hyper = run.algorithm.objective(run.algorithm.hyper), LocalSGD(name="x", steps=20, batch_size=None)
    for v in (OPTIMUM, np.linspace(-1, 2, D)):
        start = {"x": torch.from_numpy(v)}
        for k in range(M):
            linear, data = scale({"x": torch.from_numpy(slope(k, v))}, -1), run.data(k, run.algorithm.hyper.batches)
            w, _ = minimize(objective, start, data, hyper, linear=linear, proximal=Proximal(0.7, start))
            assert vector(w) == pytest.approx(v, abs=1e-12)
            w, _ = minimize(objective, start, data, hyper, proximal=Proximal(0.7, start))
            assert np.abs(vector(w) - v).max() > 1e-2


# ---- prototypes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layer", ["output", "features"])
def test_prototypes_do_not_care_what_classes_are_called(layer):
    torch.manual_seed(0)
    task = Task(nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)).double())
    w, x, y = task.init(), torch.randn(24, 5).double(), torch.arange(24) // 2 % 3
    names = torch.tensor([2, 3, 0, 1])
    found = {}
    for adapt in ("proto", "maml", "none"):
        hp = OnlineSGD(name="any", adapt=adapt, proto_layer=layer, adapt_lr=0.5)
        gradient = gradient_and_value(lambda w, batch, hp=hp: meta_loss(task, w, batch, hp))
        (slopes, value), (others, other) = (gradient(w, Batch(x, labels)) for labels in (y, names[y]))
        found[adapt] = max(float((slopes[n] - others[n]).abs().max()) for n in w) + abs(float(value - other))
        if adapt == "proto" and layer == "features":
            assert all(float(slopes[name].abs().max()) == 0 for name in ("2.weight", "2.bias"))
            assert float(slopes["0.weight"].abs().max()) > 1e-3
    assert found["proto"] < 1e-14
    assert min(found["maml"], found["none"]) > 1e-2


def test_the_loss_of_prototypes_is_the_softmax_over_the_classes_with_support():
    torch.manual_seed(1)
    task = Task(nn.Linear(3, 9).double())
    w, x, y = task.init(), torch.randn(12, 3).double(), torch.tensor([7, 7, 2, 2] * 3)
    outputs = task.logits(w, x)
    centres = torch.stack([outputs[0::2][y[0::2] == label].mean(0) for label in (2, 7)])
    near = -torch.cdist(outputs[1::2], centres).square()
    expected = nn.functional.cross_entropy(near, (y[1::2] == 7).long())
    assert float(meta_loss(task, w, Batch(x, y), OnlineSGD(name="x", adapt="proto"))) == pytest.approx(float(expected))
