"""PFL's rates (pfl.md, section 5.9): FedDyn's bounds with the losses after adaptation, and exact local solves."""

import numpy as np
import pytest
from exact import DoubleQuadratics, Exact, Waves, waves
from personal import ADAPTED, ETA, OPTIMUM, B, D, ExactMeta, M, P, slope, vector

from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.personalized.pfldyn import PFLDyn


@pytest.mark.parametrize("alpha", [13.0, 40.0])
def test_the_average_converges_as_one_over_t_with_exact_solves(alpha):
    # Theorem 2, in FedDyn's numerical form (Theorem 5) with the losses after adaptation, whose L is below 1/2.
    smooth = max(np.linalg.eigvalsh(b).max() for b in B)
    assert alpha > 26 * smooth
    run = Exact(FedDyn, DoubleQuadratics(D), ADAPTED, alpha=alpha, solver="newton")
    bias = np.mean([slope(k, OPTIMUM) @ slope(k, OPTIMUM) for k in range(M)])
    state, rng, path = run.start(), np.random.default_rng(0), []
    bracket = 10 * alpha * (state.w - OPTIMUM) @ (state.w - OPTIMUM) + 100 * M / P / alpha * bias
    for t in range(1, 31):
        state = run.after(state, rng.choice(M, P, replace=False))
        path.append(state.w + vector(state.server["h"]) / alpha)
        if t in (1, 10, 30):
            assert t * (run.mean_loss(np.mean(path, axis=0)) - run.mean_loss(OPTIMUM)) <= bracket


def test_where_losses_are_strongly_convex_the_rate_is_linear():
    # Theorem 6 of FedDyn, of the losses after adaptation.
    values = np.linalg.eigvalsh(B)
    alpha = max(5 * M / P * values.min(), 30 * values.max())
    run, ratio = Exact(FedDyn, DoubleQuadratics(D), ADAPTED, alpha=alpha, solver="newton"), 1 + values.min() / alpha
    bias = np.mean([slope(k, OPTIMUM) @ slope(k, OPTIMUM) for k in range(M)])
    state, rng, total, weight, gaps = run.start(), np.random.default_rng(0), np.zeros(D), 0.0, {}
    bracket = 20 * alpha * (state.w - OPTIMUM) @ (state.w - OPTIMUM) + 400 * M / P / alpha * bias
    for t in range(300):
        total, weight = total + ratio**t * (state.w + vector(state.server["h"]) / alpha), weight + ratio**t
        gaps[t + 1] = run.mean_loss(total / weight) - run.mean_loss(OPTIMUM)
        assert gaps[t + 1] <= ratio**-t * bracket
        state = run.after(state, rng.choice(M, P, replace=False))
    assert gaps[300] <= ratio**-150 * gaps[150]


class AdaptedWaves(Waves):
    """Waves after a step of MAML, in closed form: not convex, and smooth as far as anybody goes here."""

    def loss(self, w, batch):
        c, e = batch.x[0].split(self.dimension)
        slope = 0.2 * (w["x"] - c) - 0.8 * (w["x"] - e).sin()
        return super().loss({"x": w["x"] - ETA * slope}, batch)


@pytest.mark.exhaustive("convergence")
def test_gradients_vanish_on_average_where_losses_are_not_convex():
    # Theorem 7 of FedDyn, of the losses after adaptation.
    (task, samples), far = waves(M), 4.5
    grid = np.linspace(-far, far, 20001)[:, None, None]
    c, e = samples[:, :D], samples[:, D:]
    adapted = grid - ETA * (0.2 * (grid - c) - 0.8 * np.sin(grid - e))
    values = 0.1 * (adapted - c) ** 2 + 0.8 * np.cos(adapted - e)
    bends = np.diff(values, 2, axis=0) / (grid[1] - grid[0]) ** 2
    smooth, solutions = np.abs(bends).max(), grid[values.argmin(0), 0, 0]
    assert bends.min() < -0.5
    alpha = 20 * smooth * M / P
    run = Exact(FedDyn, AdaptedWaves(D), samples, alpha=alpha, solver="newton")
    # Which are the losses that PFLDyn adapts by itself.
    own = ExactMeta(PFLDyn, task, samples, adapt="maml", adapt_lr=ETA, epochs=None, steps=1)
    state, rng, total, slopes = run.start(), np.random.default_rng(0), 0.0, []
    for k in range(M):
        batch = next(own.data(k, own.algorithm.hyper.batches).batches("train"))
        found = gradient_and_value(own.algorithm.objective(own.algorithm.hyper))(state.server["w"], batch)[0]
        assert vector(found) == pytest.approx(run.gradient(k, state.w), abs=1e-12)
    # The minimum of each client stands for the model of who has not taken part yet.
    apart = np.mean([(w - state.w) @ (w - state.w) for w in solutions])
    bracket = 3 * alpha * (run.mean_loss(state.w) - values.mean(1).min(0).sum())
    bracket += 30 * smooth**3 * M / P / alpha * apart
    for _ in range(200):
        now = state.w + vector(state.server["h"]) / alpha
        slopes.append(run.mean_gradient(now) @ run.mean_gradient(now))
        total += slopes[-1]
        assert total <= bracket
        state = run.after(state, rng.choice(M, P, replace=False))
        assert max(np.abs(w).max() for w in (now, *solutions, *state.models) if w is not None) < far
    assert slopes[-1] < 0.25 * slopes[0]
