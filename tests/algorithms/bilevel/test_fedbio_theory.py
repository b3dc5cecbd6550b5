"""What FedBiO's analysis promises of hypergradients and of FedBiO, on the quadratic problem in double precision
(fedbio.md, section 6.1).
"""

import numpy as np
import pytest
import torch
from bilevels import HET, LOCAL, STEPS, Run, far, oracles, problem

from hedgerow.algorithms.bilevel.fedbio import FedBiO
from hedgerow.algorithms.bilevel.fedbio_local import FedBiOLocal
from hedgerow.algorithms.bilevel.lfednest import LFedNest
from hedgerow.algorithms.bilevel.local_bo import LocalBO
from hedgerow.algorithms.core.pytree import tree_map

# ---- hypergradients ---------------------------------------------------------------------------------------------


def test_client_hypergradients_are_biased_where_clients_differ():
    """C1: their mean, each with its own Hessian, at the common y_x."""
    biases = []
    for heterogeneity in (0.0, 0.25, 0.5, 1.0):
        task = problem(heterogeneity=heterogeneity).task
        x = torch.ones(4).double()
        mean, each = task._problems(0.0, local=False), task._problems(0.0, local=True)
        y = torch.linalg.solve(mean.A, mean.B @ x + mean.c)[0]
        u = torch.linalg.solve(each.A, each.D @ y - each.e)
        naive = (each.P @ x - each.r + (each.B.mT @ u[..., None])[..., 0]).mean(0)
        exact = task.hypergradient(x)
        biases.append(float((naive - exact).norm() / exact.norm()))
    assert biases[0] < 1e-6
    assert biases == sorted(biases)
    assert biases[-1] > 0.05


def test_the_closed_form_is_the_gradient_of_h():
    """And h's minimiser makes it vanish; one lower level for all, and one per client, differ."""
    task = HET.task

    def h(x, local):
        q = task._problems(0.0, local)
        y = torch.linalg.solve(q.A, q.B @ x + q.c)
        values = 0.5 * (y * (q.D @ y[..., None])[..., 0]).sum(-1) - (q.e * y).sum(-1)
        return (values + 0.5 * (x * (q.P @ x)).sum(-1) - q.r @ x).mean()

    x = torch.randn(4).double()
    for local in (False, True):
        wanted = torch.func.grad(lambda x, local=local: h(x, local))(x)
        assert torch.allclose(task.hypergradient(x, local=local), wanted, atol=1e-12)
        assert task.hypergradient(HET.best(local)["x"], local=local).norm() < 1e-12
    assert (HET.best()["x"] - HET.best(local=True)["x"]).norm() > 0.05


def test_hypergradients_are_as_sensitive_as_their_constants_say():
    """C18 and C19, with L_xy = L_yy = 0 on the quadratic: heterogeneity, and Lipschitz continuity of y_x and grad h."""
    task, each = HET.task, HET.task._problems(0.0, local=True)
    mean = task._problems(0.0, local=False)
    mu = float(torch.linalg.eigvalsh(mean.A)[0, 0])
    rng = torch.Generator().manual_seed(0)
    hessian = mean.P + mean.B.mT @ torch.linalg.solve(mean.A, mean.D @ torch.linalg.solve(mean.A, mean.B))
    for _ in range(20):
        x, z = (torch.randn(4, generator=rng).double() for _ in range(2))
        ys = [torch.linalg.solve(mean.A, mean.B @ v + mean.c)[0] for v in (x, z)]
        cross = float(torch.linalg.matrix_norm(mean.B[0], 2))
        assert (ys[0] - ys[1]).norm() <= cross / mu * (x - z).norm() + 1e-12
        change = task.hypergradient(x) - task.hypergradient(z)
        assert torch.allclose(change, (hessian[0] @ (x - z)), atol=1e-10)
    # Between clients: gradients of f, Jacobians and Hessians, weighted as Proposition 4 has them.
    x = torch.ones(4).double()
    y = torch.linalg.solve(each.A, each.B @ x + each.c)
    b = (each.D @ y[..., None])[..., 0] - each.e
    slopes = each.P @ x - each.r + (each.B.mT @ torch.linalg.solve(each.A, b)[..., None])[..., 0]
    mus, bigs = torch.linalg.eigvalsh(each.A)[:, 0].min(), torch.linalg.eigvalsh(each.A)[:, -1].max()
    bigs = max(bigs, torch.linalg.matrix_norm(each.B, 2).max())
    kappa, cf = bigs / mus, b.norm(dim=-1).max()
    for i in range(8):
        for j in range(8):
            # f's gradients at the same point, the minimiser of client j.
            at = (each.D[i] @ y[j] - each.e[i]) - b[j]
            direct = (each.P[i] - each.P[j]) @ x - (each.r[i] - each.r[j])
            zeta_f = (at.square().sum() + direct.square().sum()).sqrt()
            zeta_xy = torch.linalg.matrix_norm(each.B[i] - each.B[j], 2)
            zeta_yy = torch.linalg.matrix_norm(each.A[i] - each.A[j], 2)
            bound = (1 + kappa) * zeta_f + cf / mus * zeta_xy + kappa * cf / mus * zeta_yy
            bound += (1 + kappa) * max(bigs, 1.5) * (y[i] - y[j]).norm()
            assert (slopes[i] - slopes[j]).norm() <= bound + 1e-9


def test_steps_on_the_lower_level_contract():
    """C14 and C15: with the gradient, and with any other direction."""
    directions = oracles(HET)
    z = tree_map(lambda leaf: leaf.expand(8, *leaf.shape).clone(), Run(FedBiO, HET, **STEPS).server)
    q = HET.task._problems(0.0, local=True)
    y_best = torch.linalg.solve(q.A, (q.B @ z["x"]["x"][..., None])[..., 0] + q.c)
    mu, big = torch.linalg.eigvalsh(q.A)[:, 0], torch.linalg.eigvalsh(q.A)[:, -1]
    gamma = 1 / (2 * big.max())
    rng = torch.Generator().manual_seed(1)
    for a in (1.0, 0.3):
        for _ in range(100):
            z["y"]["y"] = torch.randn(8, 6, generator=rng).double() * 3
            slope = directions(z)["y"]["y"]
            omega = slope + torch.randn(8, 6, generator=rng).double()
            before = (z["y"]["y"] - y_best).square().sum(-1)
            after = (z["y"]["y"] - gamma * slope - y_best).square().sum(-1)
            assert (after <= (1 - mu * gamma) * before + 1e-9).all()
            moved = (z["y"]["y"] - gamma * a * omega - y_best).square().sum(-1)
            bound = (1 - mu * gamma * a / 2) * before - gamma**2 * a / 4 * omega.square().sum(-1)
            bound += 4 * gamma * a / mu * (slope - omega).square().sum(-1)
            assert (moved <= bound + 1e-9).all()


# ---- FedBiO -----------------------------------------------------------------------------------------------------


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("u_at", ["t", "t+1"])
def test_synchronous_fedbio_is_exact_where_clients_differ(u_at):
    """C2, with both readings of where u's step looks; the second costs another exchange."""
    run = Run(FedBiO, HET, steps=1, u_at=u_at, **STEPS).rounds(500)
    assert max(run.distance(name) for name in "xyu") < 1e-8
    assert run.exchanges == (500 if u_at == "t" else 1000)


@pytest.mark.parametrize("u_at", ["t", "t+1"])
def test_independent_and_shared_batches_are_the_same_where_all_samples_are_used(u_at):
    settings = {**STEPS, "steps": 3, "u_at": u_at}
    shared = Run(FedBiO, HET, **settings).rounds(3)
    apart = Run(FedBiO, HET, **{**settings, "single_batch": False}).rounds(3)
    assert far(shared.server, apart.server) < 1e-13


@pytest.mark.exhaustive("convergence")
def test_fedbio_is_exact_with_local_steps_where_clients_are_equal():
    """C3."""
    run = Run(FedBiO, problem(heterogeneity=0.0), steps=10, **STEPS).rounds(60)
    # The samples are stored in single precision.
    assert max(run.distance(name) for name in "xyu") < 1e-6


@pytest.mark.exhaustive("convergence")
def test_fedbio_drifts_with_local_steps_where_clients_differ():
    """C5: more with more local steps, and about linearly in the step."""
    errors = {}
    for scale in (1.0, 0.5):
        rates = {**STEPS, "lr": 0.2 * scale, "u_lr": 0.2 * scale, "upper_lr": 0.1 * scale}
        errors[scale] = [
            Run(FedBiO, HET, steps=steps, **rates).rounds(int(120 / scale / steps)).distance() for steps in (2, 4, 8)
        ]
        assert errors[scale] == sorted(errors[scale])
    assert all(0.4 < half / full < 0.8 for half, full in zip(errors[0.5], errors[1.0], strict=True))


def test_clients_drift_no_farther_than_their_directions_differ():
    """C16 (Lemma 3): ||x_t^m - mean||^2 <= I eta^2 sum over the round's steps of ||nu^m - mean||^2; the same for y."""
    algorithm = Run(FedBiO, HET, steps=8, **STEPS).algorithm
    hyper = algorithm.hyper
    directions = oracles(HET)
    z = tree_map(lambda leaf: leaf.expand(8, *leaf.shape), Run(FedBiO, HET, **STEPS).rounds(5).server)
    spread = {"x": torch.zeros(8).double(), "y": torch.zeros(8).double()}
    for t in range(1, 9):
        found = directions(z)
        z = algorithm.descend(hyper, z, found)
        for name, rate in (("x", hyper.upper_lr), ("y", hyper.lr)):
            d, v = found[name][name], z[name][name]
            spread[name] += (d - d.mean(0)).square().sum(-1)
            away = (v - v.mean(0)).square().sum(-1)
            assert (away <= t * rate**2 * spread[name] + 1e-12).all()


def test_the_estimate_is_as_far_off_as_lemma_8_says():
    """C17: with u equal on all clients; with u that differ the inequality fails, as the lemma does not say."""
    task, directions = HET.task, oracles(HET)
    q = task._problems(0.0, local=False)
    each = task._problems(0.0, local=True)
    big = max(torch.linalg.eigvalsh(each.A)[:, -1].max(), 4.0)
    rng = torch.Generator().manual_seed(0)

    def sides(x, y, u):
        mean_x = x.mean(0)
        y_x = torch.linalg.solve(q.A, q.B @ mean_x + q.c)[0]
        u_x = torch.linalg.solve(q.A[0], q.D[0] @ y_x - q.e[0])
        n = directions({"x": {"x": x}, "y": {"y": y}, "u": {"y": u}})["x"]["x"].mean(0)
        left = (task.hypergradient(mean_x) - n).square().sum()
        drift = (x - mean_x).square().sum(-1) + 2 * (y - y.mean(0)).square().sum(-1)
        right = 2 * big**2 * (drift + 2 * (y_x - y.mean(0)).square().sum()).mean()
        return float(left), float(right + 4 * big**2 * (u_x - u.mean(0)).square().sum())

    for _ in range(50):
        x, y = torch.randn(8, 4, generator=rng).double(), torch.randn(8, 6, generator=rng).double()
        u = torch.randn(6, generator=rng).double().expand(8, 6)
        left, right = sides(x, y, u)
        assert left <= right
    best = HET.best()
    u = best["u"] + torch.randn(8, 6, generator=rng).double()
    u = u - u.mean(0) + best["u"]
    left, right = sides(best["x"].expand(8, 4), best["y"].expand(8, 6), u)
    assert left > right


@pytest.mark.exhaustive("convergence")
def test_naive_local_hypergradients_have_a_floor():
    """Even fully synchronous; FedBiO has none (C2). LFedNest has the same one."""
    errors = [
        Run(kind, problem(heterogeneity=h), steps=1, neumann_terms=10, **LOCAL).rounds(80).distance()
        for kind, h in ((LocalBO, 0.0), (LocalBO, 1.0), (LFedNest, 1.0))
    ]
    truncated = Run(FedBiOLocal, problem(heterogeneity=0.0), steps=1, neumann_terms=10, **LOCAL).rounds(80)
    assert errors[0] == pytest.approx(truncated.distance(local=True), abs=1e-6)
    assert min(errors[1:]) > 0.1 > 5 * errors[0]


@pytest.mark.exhaustive("convergence")
def test_the_variance_falls_with_the_number_of_clients():
    """C7: homogeneous clients, unit noise: a plateau of E ||grad h||^2 in proportion to 1 / M."""
    plateaus = []
    for clients in (2, 8, 32):
        noisy = problem(clients=clients, heterogeneity=0.0, noise=1.0, samples=64)
        run = Run(FedBiO, noisy, steps=5, batch_size=1, **STEPS).rounds(20)
        seen = [run.rounds(1).hypergradient() for _ in range(150)]
        plateaus.append(np.mean(seen))
    ratios = np.array(plateaus[:-1]) / plateaus[1:]
    assert (ratios > 2.4).all()
    assert (ratios < 6.5).all()
