"""What FedAvg, FedProx and FedSGD promise: closed forms and identities between them (feddyn.md, section 5)."""

import numpy as np
import pytest
import torch
from helpers import Quadratics, blobs, distance, identical, model, partition, run_inline, small_task

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.fedsgd import FedSGD
from hedgerow.algorithms.optim.server_optimizer import ServerOptimizer
from hedgerow.platform.config.experiment import EngineConfig, Evaluation

DATA = blobs()
SAMPLES = len(DATA.y_train)
EQUAL = partition(np.full(6, SAMPLES // 6))
# What the quadratics need to converge, by the number of local steps; all six clients in one chunk.
ROUNDS = {1: 150, 5: 50, 50: 12}
QUICKLY = {"engine": EngineConfig(mode="vmap", chunk=6), "evaluation": Evaluation(every=1000, clients=0)}
RAGGED = partition(np.array([3, 60, 17, 1, 40, 59]), seed=1)


def pooled_descent(lr: float, rounds: int) -> dict[str, torch.Tensor]:
    """Gradient descent on the mean loss of all training samples."""
    task = small_task(DATA)
    w = task.init()
    batch = Batch(task.prepare(torch.from_numpy(DATA.x_train)), torch.from_numpy(DATA.y_train))
    for _ in range(rounds):
        gradient = torch.func.grad(task.loss)(w, batch)
        w = {name: w[name] - lr * gradient[name] for name in w}
    return w


@pytest.mark.parametrize("mode", ["loop", "vmap"])
def test_fedavg_with_one_client_and_one_full_step_is_gradient_descent(mode):
    one = partition(np.array([SAMPLES]))
    run = run_inline(
        FedAvg, small_task(DATA), DATA, one, {"lr": 0.3, "batch_size": None, "steps": 1}, rounds=5,
        engine=EngineConfig(mode=mode, chunk=1),
    )  # fmt: skip
    list(run)
    assert distance(model(run), pooled_descent(0.3, 5)) < 1e-6


@pytest.mark.parametrize("clients", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_fedsgd_with_all_clients_is_gradient_descent_on_the_pooled_loss(clients, batch_size):
    hyper = {"lr": 0.3, "aggregation": {"weighting": "samples"}, "batch_size": batch_size}
    run = run_inline(FedSGD, small_task(DATA), DATA, clients, hyper, rounds=5)
    list(run)
    assert distance(model(run), pooled_descent(0.3, 5)) < 1e-6


@pytest.mark.parametrize("engine", [("loop", 1), ("vmap", 4)])
def test_fedprox_without_its_term_is_fedavg(engine):
    hyper = {"lr": 0.2, "epochs": 2, "batch_size": 8, "momentum": 0.5, "weight_decay": 1e-2}
    settings = {"clients_per_round": 0.5, "rounds": 4, "engine": EngineConfig(mode=engine[0], chunk=engine[1])}
    prox = run_inline(FedProx, small_task(DATA), DATA, RAGGED, {**hyper, "mu": 0.0}, **settings)
    average = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, hyper, **settings)
    list(prox), list(average)
    assert identical(model(prox), model(average))


@pytest.mark.parametrize("steps", [1, 5, 50])
def test_fedavg_on_quadratics_reaches_its_closed_form_fixed_point(steps):
    # K steps map w to M_k (w - c_k) + c_k with M_k = (I - lr A_k)^K; the fixed point of their mean solves
    # mean(I - M_k) w = mean((I - M_k) c_k).
    problem, lr = Quadratics(), 0.5
    run = run_inline(
        FedAvg, problem.task, problem.dataset, problem.partition, {"lr": lr, "steps": steps, "batch_size": None},
        rounds=ROUNDS[steps], **QUICKLY,
    )  # fmt: skip
    list(run)
    moved = np.stack([np.eye(4) - np.linalg.matrix_power(np.eye(4) - lr * A, steps) for A in problem.A])
    expected = np.linalg.solve(moved.mean(0), np.einsum("kij,kj->i", moved, problem.c) / len(moved))
    assert np.abs(model(run)["x"].numpy() - expected).max() < 1e-5


def test_fedavgs_bias_grows_with_local_work_and_one_step_has_none():
    problem = Quadratics()
    gaps = []
    for steps in (1, 5, 50):
        run = run_inline(
            FedAvg, problem.task, problem.dataset, problem.partition, {"lr": 0.5, "steps": steps, "batch_size": None},
            rounds=ROUNDS[steps], **QUICKLY,
        )  # fmt: skip
        list(run)
        gaps.append(np.linalg.norm(model(run)["x"].numpy() - problem.optimum))
    assert gaps[0] < 1e-5 < gaps[1] < gaps[2]
    # Many exact steps: each client returns its own minimiser, and their mean is not the optimum.
    assert np.abs(model(run)["x"].numpy() - problem.c.mean(0)).max() < 1e-3


@pytest.mark.exhaustive("convergence")
def test_fedproxs_fixed_point_on_quadratics_nears_the_optimum_as_mu_grows():
    # Exact local minimisation: w_k = (A_k + mu I)^-1 (A_k c_k + mu w).
    problem = Quadratics()
    gaps = []
    for mu in (0.1, 0.5, 1.0):
        run = run_inline(
            FedProx, problem.task, problem.dataset, problem.partition,
            {"lr": 0.5, "steps": 80, "batch_size": None, "mu": mu}, rounds=60, **QUICKLY,
        )  # fmt: skip
        list(run)
        inverse = np.linalg.inv(problem.A + mu * np.eye(4))
        pull = np.einsum("kij,kjl,kl->i", inverse, problem.A, problem.c) / 6
        expected = np.linalg.solve(np.eye(4) - mu * inverse.mean(0), pull)
        assert np.abs(model(run)["x"].numpy() - expected).max() < 1e-4
        gaps.append(np.linalg.norm(expected - problem.optimum))
    assert gaps[0] > gaps[1] > gaps[2] > 1e-3


@pytest.mark.parametrize("algorithm", [FedAvg, FedProx, FedSGD])
def test_loop_equals_vmap_whatever_the_options(algorithm):
    hyper = {"lr": 0.2, "weight_decay": 1e-2, "batch_size": 8}
    if algorithm is not FedSGD:
        hyper |= {"epochs": 2, "momentum": 0.7}
    hyper |= {"clip_norm": 0.5}
    runs = []
    for mode, chunk in (("loop", "auto"), ("vmap", 4), ("vmap", 6)):
        engine = EngineConfig(mode=mode, chunk=chunk)
        run = run_inline(algorithm, small_task(DATA), DATA, RAGGED, hyper, rounds=4, engine=engine)
        records = list(run)
        runs.append((model(run), [r["train_loss"] for r in records]))
    for other, losses in runs[1:]:
        assert distance(runs[0][0], other) < 1e-5
        assert losses == pytest.approx(runs[0][1], abs=1e-5)


@pytest.mark.parametrize("algorithm", [FedAvg, FedSGD])
def test_clipping_bounds_the_step(algorithm):
    one = partition(np.array([SAMPLES]))
    task = small_task(DATA)
    steps = {"steps": 1} if algorithm is FedAvg else {}
    run = run_inline(algorithm, task, DATA, one, {"lr": 1.0, "batch_size": None, "clip_norm": 0.01, **steps}, rounds=1)
    list(run)
    moved = sum(float((p - q).square().sum()) for p, q in zip(model(run).values(), task.init().values(), strict=True))
    assert moved**0.5 == pytest.approx(0.01, rel=1e-3)


def test_learning_rate_decays_from_round_to_round():
    hyper = FedAvg.Hyper(lr=0.4, lr_decay=0.5)
    assert [hyper.at(t).lr for t in (1, 2, 3)] == [0.4, 0.2, 0.1]


def test_weights_by_samples_are_those_of_the_pooled_mean():
    # One full-batch step per client, weighted by samples, is one step on the pooled loss.
    hyper = {"lr": 0.3, "steps": 1, "batch_size": None, "aggregation": {"weighting": "samples"}}
    run = run_inline(FedAvg, small_task(DATA), DATA, RAGGED, hyper, rounds=5)
    list(run)
    assert distance(model(run), pooled_descent(0.3, 5)) < 1e-6


W, MEAN = {"x": torch.tensor([1.0, -2.0])}, {"x": torch.tensor([0.5, 0.0])}
DELTA = np.array([-0.5, 2.0])


def test_server_averages_by_default():
    w, state = ServerOptimizer().step(W, MEAN, ServerOptimizer().init(W))
    assert identical(w, MEAN)
    assert state == {}


def test_server_momentum_is_fedavgm():
    server = ServerOptimizer(lr=0.5, momentum=0.9)
    w, state = server.step(W, MEAN, server.init(W))
    assert w["x"].numpy() == pytest.approx(W["x"].numpy() + 0.5 * DELTA)
    w2, _ = server.step(W, MEAN, state)
    assert w2["x"].numpy() == pytest.approx(W["x"].numpy() + 0.5 * 1.9 * DELTA)


@pytest.mark.parametrize(
    ("optimizer", "second"),
    [
        ("adagrad", 0.01**2 + DELTA**2),
        ("adam", 0.9 * 0.01**2 + 0.1 * DELTA**2),
        ("yogi", 0.01**2 + 0.1 * DELTA**2),
    ],
)
def test_adaptive_servers_follow_fedopt(optimizer, second):
    decay = {} if optimizer == "adagrad" else {"beta2": 0.9}
    server = ServerOptimizer(optimizer=optimizer, lr=0.1, momentum=0.8, tau=0.01, **decay)
    w, _ = server.step(W, MEAN, server.init(W))
    expected = W["x"].numpy() + 0.1 * 0.2 * DELTA / (np.sqrt(second) + 0.01)
    assert w["x"].numpy() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("optimizer", "key"), [("sgd", "beta2"), ("sgd", "tau"), ("adagrad", "beta2")])
def test_settings_that_a_server_optimizer_does_not_read_are_refused(optimizer, key):
    with pytest.raises(ValueError, match=f"`{key}` has no effect with `optimizer: {optimizer}`; remove it"):
        ServerOptimizer(optimizer=optimizer, **{key: 0.5})
    # Files of finished runs name every setting.
    ServerOptimizer(optimizer=optimizer, beta2=0.99, tau=1e-3)


def test_learning_rate_decays_after_given_rounds():
    hyper = FedAvg.Hyper(lr=0.8, lr_decay=0.25, lr_decay_after=[2, 3])
    assert [hyper.at(t).lr for t in (1, 2, 3, 4, 9)] == [0.8, 0.8, 0.2, 0.05, 0.05]


def test_of_two_keys_that_replace_each_other_one_is_given():
    """The other is then null, whichever has the default; base classes' pairs hold in addition to a class's own."""

    class Stepwise(FedAvg.Hyper):
        alternatives = (("grams", "litres"),)
        epochs: int | None = None
        steps: int | None = 5
        grams: float | None = 1.0
        litres: float | None = None

    def found(**given):
        hyper = Stepwise(**given)
        return hyper.epochs, hyper.steps, hyper.grams, hyper.litres

    assert found() == (None, 5, 1.0, None)
    assert found(epochs=2) == (2, None, 1.0, None)
    assert found(steps=3, litres=2.0) == (None, 3, None, 2.0)
    for wrong, names in (
        ({"epochs": 2, "steps": 3}, "`epochs` or `steps`"),
        ({"steps": None}, "`epochs` or `steps`"),
        ({"grams": 1.0, "litres": 1.0}, "`grams` or `litres`"),
    ):
        with pytest.raises(ValueError, match=f"give either {names}, and set the other to null"):
            Stepwise(**wrong)
