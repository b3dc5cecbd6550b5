"""Comm-FedBiO's sketched linear system and its outer loop: the checks of comm_fedbio.md, sections 6.4 and 6.5."""

import numpy as np
import pytest
import torch
from bilevels import EXACT, Run, Solving, linear, quadratic, relative, spectrum, system

from hedgerow.algorithms.noisy_labels.comm_fedbio_non_iter import CommFedBiONonIter
from hedgerow.algorithms.noisy_labels.comm_fedbio_topk import CommFedBiOTopK
from hedgerow.algorithms.transforms.sketches import SparseEmbedding

FIVE = linear(spectrum(60, 0.1, 1.0, 0, clients=5, spread=0.05), np.random.default_rng(1).normal(size=60))
EVERYTHING = {"compressor": "random_k", "compression": 1}

# ---- the sketched system ------------------------------------------------------------------------------------------


class Sized(CommFedBiONonIter):
    """With r1 given."""

    r1 = 1

    def size(self, d):
        return self.r1


def sized(r1):
    return type("Sized", (Sized,), {"r1": r1})


def test_as_many_gaussian_rows_as_parameters_are_exact():
    assert relative(Solving(sized(60), FIVE, sketch="gaussian").result, FIVE) < 1e-8
    # Columns of a sparse embedding collide: it is not invertible.
    assert relative(Solving(sized(60), FIVE, sketch="sparse").result, FIVE) > 0.1


def test_its_clients_count_by_their_samples():
    sizes = np.array([10.0, 20.0, 30.0, 40.0, 500.0])
    for one_round in (True, False):
        run = Solving(sized(60), FIVE, sizes=sizes, sketch="gaussian", one_round=one_round)
        best = system(FIVE, sizes)[-1]
        assert float((run.result - best).norm() / best.norm()) < 1e-4


def test_one_round_and_two_phases_agree():
    for kind in ("sparse", "gaussian"):
        one, two = (Solving(CommFedBiONonIter, FIVE, sketch=kind, compression=2, one_round=o) for o in (True, False))
        assert torch.allclose(one.result, two.result, atol=1e-9)


@pytest.mark.parametrize("kind", ["sparse", "gaussian"])
def test_where_all_lies_in_the_dominant_eigenspace_sketches_suffice(kind):
    """Section 6.4: the hypergradient's error falls with r1, while v itself stays far off."""
    d, top, mu = 200, 8, 0.01
    errors, far = {}, []
    for r1 in (10, 40):
        errors[r1] = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            u = np.linalg.qr(rng.normal(size=(d, top)))[0]
            h = (mu * np.eye(d) + (1 - mu) * u @ u.T)[None]
            cross, b = u @ rng.normal(size=(top, 5)), u @ rng.normal(size=top)
            problem = quadratic(h, -cross[None], np.zeros((d, d)), -b, np.zeros((5, 5)))
            best = np.linalg.solve(h[0], b)
            found = Solving(sized(r1), problem, round=seed + 1, sketch=kind).result.numpy()
            errors[r1].append(np.linalg.norm(found - cross.T @ best) / np.linalg.norm(cross.T @ best))
            v = Solving(sized(r1), linear(h, b), round=seed + 1, sketch=kind).result.numpy()
            far.append(np.linalg.norm(v - best) / np.linalg.norm(best))
    assert np.median(errors[40]) < 0.5 * np.median(errors[10])
    assert np.median(errors[40]) < 0.1
    assert min(far) > 1


def test_the_intermediate_inequality_of_theorem_2():
    """||v - v*|| <= eps1 (1 + eps2) / (mu (1 - eps2)) ||v*|| ||H||, of the distortions that are measured; always."""
    h = spectrum(60, 0.1, 1.0, 4)[0]
    b = np.random.default_rng(5).normal(size=60)
    best, held = np.linalg.solve(h, b), 0
    for r1, r2 in ((5, 40), (10, 60), (20, 200)):
        s1, s2 = (
            np.stack([kind.apply(torch.from_numpy(one)).numpy() for one in np.eye(60)], 1)
            for kind in (SparseEmbedding.draw(60, r1, 1), SparseEmbedding.draw(60, r2, 2))
        )
        a = h @ s1.T
        v = s1.T @ np.linalg.lstsq(s2 @ a, s2 @ b, rcond=None)[0]
        size = np.linalg.norm(h)
        eps1 = np.linalg.norm(a @ s1 @ best - h @ best) / (np.linalg.norm(best) * size)
        basis = np.linalg.qr(np.column_stack([a, b]))[0]
        stretch = np.linalg.svd(s2 @ basis, compute_uv=False)
        eps2 = max(stretch[0] - 1, 1 - stretch[-1])
        if eps2 < 1:
            held += 1
            assert np.linalg.norm(h @ (v - best)) <= eps1 * (1 + eps2) / (1 - eps2) * np.linalg.norm(best) * size
            assert np.linalg.norm(v - best) <= eps1 * (1 + eps2) / (0.1 * (1 - eps2)) * np.linalg.norm(best) * size
    assert held


# ---- the outer loop -----------------------------------------------------------------------------------------------


def toy(seed=0, p=6, d=24, rho=0.5):
    """Section 6.5: f = 1/2 ||y - t||^2 + rho/2 ||x||^2; one client. And the smoothness of h."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    hessian, coupling = (q * np.linspace(0.5, 2.0, d)) @ q.T, rng.normal(size=(d, p)) / np.sqrt(d)
    found = np.linalg.solve(hessian, coupling)
    problem = quadratic(hessian[None], coupling[None], np.eye(d), rng.normal(size=d), rho * np.eye(p))
    return problem, np.linalg.eigvalsh(rho * np.eye(p) + found.T @ found)[-1]


def outer_objective(problem, x):
    """h."""
    q = problem.task._problems(0.0, False)
    y = torch.linalg.solve(q.A, q.B @ x + q.c)
    return float((0.5 * (y @ q.D[0] @ y.mT).sum() - (q.e * y).sum() + 0.5 * x @ q.P[0] @ x).sum())


def descent(kind, rounds, problem, smoothness, **hyper):
    """||grad h||^2 before each round, and h's excess over its minimum before and after; y is all but solved in every
    round. One-step descent holds in each: h falls by eta (1/2 - eta L) ||grad h||^2 but for the estimate's error."""
    eta = 1 / (2 * smoothness * (rounds + 1) ** 0.5)
    run = Run(kind, problem, **EXACT, **{"lr": 0.8, "steps": 8, "upper_lr": eta, **hyper})
    run.server["x"]["x"] = torch.full_like(run.server["x"]["x"], 3.0)
    least = outer_objective(problem, problem.best()["x"])
    slopes, values = [], [outer_objective(problem, run.server["x"]["x"]) - least]
    for _ in range(rounds):
        before = run.server["x"]["x"]
        exact = problem.task.hypergradient(before)
        run.rounds(1)
        error = (before - run.server["x"]["x"]) / eta - exact
        slopes.append(float(exact.square().sum()))
        values.append(outer_objective(problem, run.server["x"]["x"]) - least)
        wrong = eta * (0.5 + eta * smoothness) * float(error.square().sum())
        assert values[-1] <= values[-2] - eta * (0.5 - eta * smoothness) * slopes[-1] + wrong + 1e-9
    return np.mean(slopes), values[0], values[-1]


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(
    ("kind", "least", "change"),
    [
        (CommFedBiOTopK, 1.8, {**EVERYTHING, "u_lr": 0.5, "u_steps": 8}),
        (CommFedBiOTopK, 1.8, {"compression": 5, "u_lr": 0.3, "u_steps": 8}),
        (sized(12), 1.5, {"sketch": "gaussian"}),
    ],
)
@pytest.mark.exhaustive("convergence")
def test_theorem_4s_rate(kind, least, change):
    """The mean of ||grad h||^2 over K rounds falls by about 2 from K to 4 K, as 1 / sqrt(K)."""
    problem, smoothness = toy()
    (few, first, last), (many, *_) = (descent(kind, rounds, problem, smoothness, **change) for rounds in (20, 80))
    assert few / many > least
    assert last < 0.5 * first


@pytest.mark.exhaustive("convergence")
def test_five_local_steps_from_where_y_was_suffice():
    problem, smoothness = toy(1)
    settings = {"lr": 0.4, "steps": 5, "compression": 5, "u_lr": 0.3, "u_steps": 8, "upper_lr": 0.3 / smoothness}
    run = Run(CommFedBiOTopK, problem, **EXACT, **settings)
    run.server["x"]["x"] = torch.full_like(run.server["x"]["x"], 3.0)
    first = run.hypergradient()
    assert run.rounds(80).hypergradient() < 1e-2 * first
