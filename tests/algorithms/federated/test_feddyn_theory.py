"""The analysis of FedDyn as numbers (feddyn.md, section 5): exact local solves, expectations over every cohort."""

import numpy as np
import pytest
import torch
from exact import Exact, State, quadratics, waves
from helpers import QuadraticTask, dataset, partition, run_inline

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import scale
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.optim.local_sgd import LocalSGD, LocalSolver, Proximal, minimize, plain_steps
from hedgerow.platform.config.experiment import EngineConfig, Evaluation

M, P = 6, 2
TASK, SAMPLES, OPTIMUM = quadratics(M)
L, MU = 1.0, 0.2


def feddyn(alpha: float, **hyper) -> Exact:
    return Exact(FedDyn, TASK, SAMPLES, alpha=alpha, **({"solver": "newton"} | hyper))


def g(state: State, k: int) -> np.ndarray:
    return state.clients[k]["g"]["x"].numpy()


def h(state: State) -> np.ndarray:
    return state.server["h"]["x"].numpy()


def active_mean(state: State, alpha: float) -> np.ndarray:
    """g^t of the analysis."""
    return state.w + h(state) / alpha


def square(v: np.ndarray) -> float:
    return float(v @ v)


def drift(run: Exact, state: State, optimum: np.ndarray) -> float:
    """C_t; a client that was never active stands at the minimiser of its own loss, where g_k = 0 is the gradient."""
    return float(np.mean([square(g(state, k) - run.gradient(k, optimum)) for k in range(run.m)]))


def would_be(run: Exact, state: State) -> np.ndarray:
    """(m, d): the model that every client would return in the next round, active or not."""
    everybody = run.after(state, range(run.m))
    return np.stack(everybody.models)


def suboptimality(run: Exact, w: np.ndarray) -> float:
    return run.mean_loss(w) - run.mean_loss(OPTIMUM)


# ---- identities, fixed point, convergence -------------------------------------------------------------------------


@pytest.mark.parametrize(("active", "alpha"), [(M, 0.5), (P, 0.1), (P, 5.0)])
def test_states_are_gradients_and_their_mean(active, alpha):
    run, state, rng = feddyn(alpha), feddyn(alpha).start(), np.random.default_rng(1)
    for _ in range(8):
        cohort = rng.choice(M, active, replace=False)
        state = run.after(state, cohort)
        for k in range(M):
            if state.models[k] is not None:
                assert g(state, k) == pytest.approx(run.gradient(k, state.models[k]), abs=1e-12)
        assert h(state) == pytest.approx(np.mean([g(state, k) for k in range(M)], axis=0), abs=1e-13)
        assert active_mean(state, alpha) == pytest.approx(np.mean([state.models[k] for k in cohort], axis=0), abs=1e-12)


def test_the_servers_state_is_the_clients_mean_with_inexact_solves_too():
    run = feddyn(0.3, solver="sgd", steps=3, lr=0.2)
    state = run.run(20, P)
    assert h(state) == pytest.approx(np.mean([g(state, k) for k in range(M)], axis=0), abs=1e-13)


@pytest.mark.parametrize("hyper", [{}, {"solver": "sgd", "steps": 7, "lr": 0.3}], ids=["exact", "inexact"])
def test_the_optimum_is_a_fixed_point_for_every_cohort(hyper):
    run = feddyn(0.4, **hyper)
    start = run.start()
    start.server["w"] = {"x": torch.from_numpy(OPTIMUM)}
    start.clients = [{"g": {"x": torch.from_numpy(run.gradient(k, OPTIMUM))}} for k in range(M)]
    assert max(np.abs(g(start, k)).max() for k in range(M)) > 0.1
    for after in run.every_cohort(start, P):
        assert np.abs(after.w - OPTIMUM).max() < 1e-12
        assert np.abs(h(after)).max() < 1e-12
        assert max(np.abs(g(after, k) - g(start, k)).max() for k in range(M)) < 1e-12


@pytest.mark.grid(keep=2)
@pytest.mark.parametrize(("alpha", "active", "rounds"), [(1, M, 100), (1, P, 300), (0.1, M, 350),
                                                         (0.1, P, 700), (10, M, 700), (10, P, 1000)])  # fmt: skip
def test_exact_solves_converge_to_the_global_optimum_whatever_alpha(alpha, active, rounds):
    run = feddyn(alpha)
    state = run.run(rounds, active)
    assert np.abs(state.w - OPTIMUM).max() < 1e-8
    assert max(np.abs(model - OPTIMUM).max() for model in state.models) < 1e-8
    assert np.abs(h(state)).max() < 1e-8
    assert max(np.abs(g(state, k) - run.gradient(k, OPTIMUM)).max() for k in range(M)) < 1e-8


@pytest.mark.grid("active")
@pytest.mark.parametrize(("steps", "rounds"), [(5, 300), (50, 120), (1, 400)])
@pytest.mark.parametrize("active", [M, P])
def test_inexact_solves_converge_to_it_as_well(steps, rounds, active):
    run = feddyn(0.5, solver="sgd", steps=steps, lr=0.5)
    assert np.abs(run.run(rounds * (1 if active == M else 2), active).w - OPTIMUM).max() < 1e-8


# ---- the baselines --------------------------------------------------------------------------------------------------


def test_fedavg_with_exact_solves_stops_at_the_mean_of_the_minimisers():
    run = Exact(FedAvg, TASK, SAMPLES, solver="newton")
    centres = SAMPLES[:, -TASK.dimension :].mean(0)
    assert np.abs(run.run(3, M).w - centres).max() < 1e-12
    assert np.abs(centres - OPTIMUM).max() > 0.05


def test_fedproxs_bias_falls_with_mu_and_never_ends():
    gaps = []
    for mu in (0.1, 0.5, 2.0):
        run = Exact(FedProx, TASK, SAMPLES, solver="newton", mu=mu)
        gaps.append(np.linalg.norm(run.run(int(20 + 40 * mu), M).w - OPTIMUM))
    assert gaps[0] > gaps[1] > gaps[2] > 1e-3


@pytest.mark.grid
@pytest.mark.parametrize(("steps", "lr", "rounds"), [(1, 0.5, 120), (5, 0.1, 120), (50, 0.02, 90)])
@pytest.mark.parametrize("active", [M, P])
def test_scaffold_reaches_the_optimum_with_any_local_work(active, steps, lr, rounds):
    run = Exact(Scaffold, TASK, SAMPLES, steps=steps, lr=lr)
    assert np.abs(run.run(rounds, active).w - OPTIMUM).max() < 1e-7


@pytest.mark.parametrize(
    ("active", "steps", "lr", "rounds", "momentum"), [(M, 1, 0.4, 150, 0.5), (P, 5, 0.02, 130, 0.9)]
)
def test_scaffold_reaches_it_with_momentum_too(active, steps, lr, rounds, momentum):
    run = Exact(Scaffold, TASK, SAMPLES, steps=steps, lr=lr, momentum=momentum)
    state = run.run(rounds, active)
    assert np.abs(state.w - OPTIMUM).max() < 1e-6
    for k in range(M):
        assert state.clients[k]["c"]["x"].numpy() == pytest.approx(run.gradient(k, OPTIMUM), abs=1e-5)


class Slopes(QuadraticTask):
    """L_k(w) = <s_k, w>: the gradient is the same everywhere; a sample is s_k."""

    def loss(self, w, batch):
        return w["x"] @ batch.x[0]


@pytest.mark.parametrize("mode", ["loop", "vmap"])
@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 7), (0.5, 1), (0.9, 7), (0.99, 60)])
def test_control_variates_of_constant_gradients_are_the_gradients(momentum, steps, mode):
    slopes = np.random.default_rng(0).normal(size=(M, 4)).astype(np.float32)
    hyper = {"steps": steps, "batch_size": None, "lr": 0.01, "momentum": momentum}
    engine = EngineConfig(mode=mode, chunk=3 if mode == "vmap" else "auto", compile=False)
    run = run_inline(Scaffold, Slopes(4), dataset(slopes, np.zeros(M, np.int64)), partition(np.ones(M, int)), hyper,
                     rounds=3, engine=engine, evaluation=Evaluation(clients=0))  # fmt: skip
    for _ in run:
        found = run.states.read(np.arange(M))["c"]["x"].numpy()
        assert found == pytest.approx(slopes, abs=1e-4)
        assert run.server["c"]["x"].numpy() == pytest.approx(slopes.mean(0), abs=1e-4)


def test_momentum_counts_as_so_many_plain_steps():
    for beta in (0.3, 0.9):
        for steps in (1, 2, 10):
            moved = velocity = 0.0
            for _ in range(steps):
                velocity = beta * velocity + 1
                moved += velocity
            assert float(plain_steps(LocalSGD(name="x", momentum=beta), torch.tensor(steps))) == pytest.approx(moved)


def test_a_linear_term_from_the_servers_model_freezes_the_client():
    # Why FedDyn's linear term is the gradient at the client's own, older model.
    run, v = feddyn(1.0), {"x": torch.linspace(-1, 2, TASK.dimension, dtype=torch.float64)}
    for k in range(M):
        slope = {"x": torch.from_numpy(run.gradient(k, v["x"].numpy()))}
        for hyper in (LocalSolver(name="x", solver="newton"), LocalSolver(name="x", steps=20, batch_size=None)):
            data = run.data(k, hyper.batches)
            w, _ = minimize(TASK.loss, v, data, hyper, linear=scale(slope, -1), proximal=Proximal(0.7, v))
            assert np.abs((w["x"] - v["x"]).numpy()).max() < 1e-12


# ---- convex: Lemmas 1 to 5 and 7, Theorem 5 -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[0, 3, 12])
def convex(request):
    """A run with alpha >= 25 L, a state of it after some rounds, and all states that may follow."""
    run = feddyn(26.0)
    state = run.run(request.param, P, seed=request.param)
    return run, 26.0, state, run.every_cohort(state, P)


def test_lemma_2_the_expected_move_is_a_gradient_step(convex):
    run, alpha, state, following = convex
    move = np.mean([active_mean(s, alpha) for s in following], axis=0) - active_mean(state, alpha)
    gradients = [run.gradient(k, w) for k, w in enumerate(would_be(run, state))]
    assert move == pytest.approx(-np.mean(gradients, axis=0) / alpha, abs=1e-12)


def test_lemmas_3_to_5_and_7_bound_move_drift_and_state(convex):
    run, alpha, state, following = convex
    now = active_mean(state, alpha)
    epsilon = float(np.mean([square(w - now) for w in would_be(run, state)]))
    gap, before = suboptimality(run, now), drift(run, state, OPTIMUM)
    after = float(np.mean([drift(run, s, OPTIMUM) for s in following]))
    tiny = 1e-12
    assert np.mean([square(active_mean(s, alpha) - now) for s in following]) <= epsilon + tiny
    assert (1 - 4 * L**2 / alpha**2) * epsilon <= 8 / alpha**2 * before + 8 * L / alpha**2 * gap + tiny
    assert after <= (1 - P / M) * before + 2 * L**2 * P / M * epsilon + 4 * L * P / M * gap + tiny
    assert np.mean([square(h(s)) for s in following]) <= after + tiny


def test_lemma_1_the_potential_falls(convex):
    run, alpha, state, following = convex
    kappa = 8 * M / P / alpha * (L + alpha) / (alpha**2 - 20 * L**2)
    kappa0 = 2 / alpha * (alpha**2 - 20 * alpha * L - 40 * L**2) / (alpha**2 - 20 * L**2)
    now = active_mean(state, alpha)

    def potential(s: State) -> float:
        return square(active_mean(s, alpha) - OPTIMUM) + kappa * drift(run, s, OPTIMUM)

    assert np.mean([potential(s) for s in following]) <= potential(state) - kappa0 * suboptimality(run, now) + 1e-12


def bias(run: Exact) -> float:
    """G = (1/m) sum ||grad L_k(w*)||^2"""
    return float(np.mean([square(run.gradient(k, OPTIMUM)) for k in range(M)]))


def means_along(run: Exact, alpha: float, rounds: list[int], seed: int, ratio: float = 1.0) -> dict[int, np.ndarray]:
    """The mean of g^0 .. g^{T-1} for each T, weighted by ratio^t."""
    state, rng, found = run.start(), np.random.default_rng(seed), {}
    total, weight = np.zeros_like(state.w), 0.0
    for t in range(max(rounds)):
        total, weight = total + ratio**t * active_mean(state, alpha), weight + ratio**t
        if t + 1 in rounds:
            found[t + 1] = total / weight
        state = run.after(state, rng.choice(M, P, replace=False))
    return found


@pytest.mark.exhaustive("convergence")
@pytest.mark.parametrize("alpha", [25.0, 30 * L * (M / P) ** 0.5])
def test_theorem_5_the_average_converges_as_one_over_t(alpha):
    run = feddyn(alpha)
    bracket = 10 * alpha * square(run.start().w - OPTIMUM) + 100 * M / P / alpha * bias(run)
    gaps = [
        {t: suboptimality(run, mean) for t, mean in means_along(run, alpha, [10, 100, 400], seed).items()}
        for seed in range(2)
    ]
    for t in (10, 100, 400):
        assert t * np.mean([gap[t] for gap in gaps]) <= bracket
    assert gaps[0][400] < gaps[0][100] < gaps[0][10]


# ---- strongly convex: Lemmas 8 and 9, Theorem 6 ---------------------------------------------------------------------


def test_lemmas_8_and_9_hold_in_one_round():
    alpha = max(5 * M / P * MU, 30 * L)
    run = feddyn(alpha)
    z = alpha**3 * P + alpha**2 * P * MU - alpha**2 * M * MU - 20 * alpha * L**2 * P + 4 * L**2 * M * MU
    z -= 20 * L**2 * P * MU
    kappa = 8 * M * (L + alpha) / z
    kappa0 = 2 * alpha**3 * P + 2 * alpha**2 * P * MU - 2 * alpha**2 * M * MU - 40 * alpha**2 * L * P
    kappa0 += -80 * alpha * L**2 * P - 40 * alpha * L * P * MU + 8 * alpha * L * M * MU + 16 * L**2 * M * MU
    kappa0 = (kappa0 - 80 * L**2 * P * MU) / (alpha * z)
    for rounds in (0, 4, 15):
        state = run.run(rounds, P, seed=rounds)
        following = run.every_cohort(state, P)
        now = active_mean(state, alpha)
        squares = np.mean([square(active_mean(s, alpha) - OPTIMUM) for s in following])
        after = squares + kappa * np.mean([drift(run, s, OPTIMUM) for s in following])
        before = square(now - OPTIMUM) + kappa * drift(run, state, OPTIMUM)
        assert (1 + MU / alpha) * after <= before - kappa0 * suboptimality(run, now) + 1e-12
        assert squares <= np.mean([square(w - OPTIMUM) for w in would_be(run, state)]) + 1e-12


@pytest.mark.exhaustive("convergence")
def test_theorem_6_the_weighted_average_converges_linearly():
    alpha = max(5 * M / P * MU, 30 * L)
    run, ratio = feddyn(alpha), 1 + MU / alpha
    bracket = 20 * alpha * square(run.start().w - OPTIMUM) + 400 * M / P / alpha * bias(run)
    gaps = {t: suboptimality(run, mean) for t, mean in means_along(run, alpha, [10, 100, 600, 1200], 0, ratio).items()}
    for rounds, gap in gaps.items():
        assert gap <= ratio ** -(rounds - 1) * bracket
    # The bound is loose; the rate is not: from 600 rounds to 1200 it falls by r^-600 (0.019) at least.
    assert gaps[1200] <= ratio**-600 * gaps[600]


# ---- nonconvex: Lemmas 10 to 12, Theorem 7 --------------------------------------------------------------------------

WAVES, WAVE_SAMPLES = waves(M)


def virtual_start(run: Exact) -> list[np.ndarray]:
    """A stationary point of each client's own loss: where it stands before it first takes part."""
    hyper = LocalSolver(name="x", solver="newton")
    start = run.start().server["w"]
    found = []
    for k in range(M):
        # Gradient descent finds a minimum, Newton its last digits.
        w, _ = minimize(WAVES.loss, start, run.data(k, LocalSolver(name="x", steps=300).batches),
                        LocalSolver(name="x", lr=0.9, steps=300, batch_size=None))  # fmt: skip
        w, _ = minimize(WAVES.loss, w, run.data(k, hyper.batches), hyper)
        assert np.abs(run.gradient(k, w["x"].numpy())).max() < 1e-12
        found.append(w["x"].numpy())
    return found


def test_lemmas_10_to_12_hold_in_one_round():
    alpha = 20 * L * M / P
    run = Exact(FedDyn, WAVES, WAVE_SAMPLES, alpha=alpha, solver="newton")
    virtual = virtual_start(run)
    z = alpha**2 * P**2 - 32 * L**2 * M**2 + 16 * L**2 * P * M - 20 * L**2 * P**2
    kappa = 4 * L**3 * P * (alpha + L) / alpha * (2 * M - P) / z
    kappa0 = alpha**2 * P**2 - 4 * alpha * L * P**2 - 32 * L**2 * M**2 - 16 * L**2 * P * M - 24 * L**2 * P**2
    kappa0 /= 2 * alpha * z

    def spread(s: State) -> float:
        """C_t, here the mean distance of the models from g^t."""
        models = [virtual[k] if model is None else model for k, model in enumerate(s.models)]
        return float(np.mean([square(model - active_mean(s, alpha)) for model in models]))

    for rounds in (0, 4, 15):
        state = run.run(rounds, P, seed=rounds)
        following = run.every_cohort(state, P)
        now = active_mean(state, alpha)
        slope, before = square(run.mean_gradient(now)), spread(state)
        after = float(np.mean([spread(s) for s in following]))
        loss = float(np.mean([run.mean_loss(active_mean(s, alpha)) for s in following]))
        epsilon = float(np.mean([square(w - now) for w in would_be(run, state)]))
        moved = float(np.mean([square(active_mean(s, alpha) - now) for s in following]))
        assert loss + kappa * after <= run.mean_loss(now) + kappa * before - kappa0 * slope + 1e-12
        assert (1 - 4 * L**2 / alpha**2) * epsilon <= 8 * L**2 / alpha**2 * before + 4 / alpha**2 * slope + 1e-12
        bound = 2 * (M - P) / (2 * M - P) * before + 2 * P / (2 * M - P) * epsilon + 2 * M / P * moved
        assert after <= bound + 1e-12


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("factor", [20, 30])
@pytest.mark.exhaustive("convergence")
def test_theorem_7_gradients_vanish_on_average(factor):
    alpha = factor * L * M / P
    run = Exact(FedDyn, WAVES, WAVE_SAMPLES, alpha=alpha, solver="newton")
    state, rng = run.start(), np.random.default_rng(0)
    apart = np.mean([square(v - state.w) for v in virtual_start(run)])
    # The loss is separable: its minimum by a fine search in each coordinate.
    grid = np.linspace(-8, 8, 20001)
    lowest = sum(
        np.mean([0.1 * (grid - s[j]) ** 2 + 0.8 * np.cos(grid - s[4 + j]) for s in WAVE_SAMPLES], axis=0).min()
        for j in range(4)
    )
    bracket = 3 * alpha * (run.mean_loss(state.w) - lowest) + 30 * L**3 * M / P / alpha * apart
    total, slopes = 0.0, []
    for t in range(1, 301):
        slopes.append(square(run.mean_gradient(active_mean(state, alpha))))
        total += slopes[-1]
        state = run.after(state, rng.choice(M, P, replace=False))
        if t in (10, 100, 300):
            assert total <= bracket
    assert slopes[-1] < 0.25 * slopes[0]


# ---- helpers of the proofs ------------------------------------------------------------------------------------------


def test_smooth_convex_losses_obey_the_inequalities_of_the_proofs():
    run, rng = feddyn(1.0), np.random.default_rng(5)
    for _ in range(50):
        x, y, z = rng.normal(size=(3, TASK.dimension)) * 3
        slopes = [square(run.gradient(k, x) - run.gradient(k, OPTIMUM)) for k in range(M)]
        assert sum(slopes) / (2 * L * M) <= suboptimality(run, x) + 1e-12
        for k in range(M):
            left = -run.gradient(k, x) @ (z - y)
            right = -run.loss(k, z) + run.loss(k, y) + L / 2 * square(z - x)
            assert left <= right - MU / 2 * square(x - y) + 1e-10
        vectors = np.stack([x, y, z])
        assert square(vectors.sum(0)) <= 3 * sum(square(v) for v in vectors) + 1e-10


def test_the_batch_of_the_driver_is_one_sample():
    run = feddyn(1.0)
    batch = next(run.data(2, run.algorithm.hyper.batches).batches("train"))
    assert isinstance(batch, Batch)
    assert batch.x.numpy()[0] == pytest.approx(SAMPLES[2])
