"""Comm-FedBiO's iterative estimator: the checks of comm_fedbio.md, section 6.2, on quadratics in double precision.

Seeds are this file's: the values of the spec's own toys are inequalities and orders of magnitude here.
"""

import numpy as np
import pytest
import torch
from bilevels import EXACT, Solving, linear, relative, spectrum, system

from hedgerow.algorithms.core.messages import Aggregate, Cohort
from hedgerow.algorithms.noisy_labels.comm_fedbio_sketch import CommFedBiOSketch
from hedgerow.algorithms.noisy_labels.comm_fedbio_solver import Change
from hedgerow.algorithms.noisy_labels.comm_fedbio_topk import CommFedBiOTopK
from hedgerow.algorithms.transforms.sketches import CountSketch

ONE = linear(spectrum(60, 0.1, 1.0, 0), np.random.default_rng(1).normal(size=60))
FIVE = linear(spectrum(60, 0.1, 1.0, 0, clients=5, spread=0.05), np.random.default_rng(1).normal(size=60))
EVERYTHING = {"compressor": "random_k", "compression": 1}


def test_without_compression_it_is_gradient_descent():
    """||v^i - v*|| <= (1 - mu/L)^i ||v*||."""
    run = Solving(CommFedBiOTopK, ONE, u_lr=1.0, u_steps=100, **EVERYTHING)
    errors = [relative(v, ONE) for v in run.v]
    assert all(error <= 0.9**i + 1e-9 for i, error in enumerate(errors))
    assert errors[-1] < 1e-4
    assert torch.allclose(run.result, run.v[-1], atol=1e-12)
    # With k = d Top-k leaves nothing out either.
    assert torch.allclose(Solving(CommFedBiOTopK, ONE, u_lr=1.0, u_steps=100, compression=1).result, run.result)


@pytest.mark.parametrize("variant", ["full", "literal"])
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (CommFedBiOTopK, {}),
        (CommFedBiOTopK, {"compressor": "random_k"}),
        (CommFedBiOSketch, {"rows": 3, "recovered": 3, "compression": 2}),
    ],
)
def test_what_is_left_out_is_not_lost(kind, change, variant):
    """The virtual sequence v - e takes the steps of gradient descent: -alpha (H v - b)."""
    run = Solving(kind, FIVE, u_lr=0.3, u_steps=12, variant=variant, **{"compression": 6, **change})
    hessian, b, _ = system(FIVE)
    for i, alpha in enumerate(run.alphas):
        moved = (run.v[i + 1] - run.e[i + 1]) - (run.v[i] - run.e[i])
        assert torch.allclose(moved, -alpha * (hessian @ run.v[i] - b), atol=1e-10)
    assert torch.allclose(run.result, run.v[-1], atol=1e-10)


@pytest.mark.parametrize("variant", ["full", "literal"])
def test_nor_where_the_server_keeps_it_in_tables(variant):
    """The same in the space of sketches."""
    settings = {"rows": 3, "recovered": 2, "compression": 2, "recovery": "server", "variant": variant}
    run = Solving(CommFedBiOSketch, FIVE, u_lr=0.1, u_steps=8, **settings)
    hessian, b, _ = system(FIVE)
    seed = Cohort(1, np.arange(5), np.ones(5), 5).seed_for("hashes 0")
    hashes = CountSketch.draw(60, 3, 10, seed)
    run.e[0] = torch.zeros(3, 10).double()
    for i, alpha in enumerate(run.alphas):
        moved = hashes.sketch(run.v[i + 1] - run.v[i]) - run.e[i + 1] + run.e[i]
        assert torch.allclose(moved, hashes.sketch(-alpha * (hessian @ run.v[i] - b)), atol=1e-10)
    assert torch.allclose(run.result, run.v[-1], atol=1e-10)


@pytest.mark.exhaustive("convergence")
def test_what_is_compressed_decides_where_it_stalls():
    """Variant A ("literal") has a floor in proportion to alpha; B's is lower, and none where clients are alike."""
    floors = {
        variant: [
            relative(
                Solving(CommFedBiOTopK, FIVE, u_lr=lr, u_steps=steps, compression=10, variant=variant).result, FIVE
            )
            for lr, steps in ((0.4, 150), (0.2, 300))
        ]
        for variant in ("full", "literal")
    }
    assert floors["literal"][1] == pytest.approx(floors["literal"][0] / 2, rel=0.3)
    assert all(full < 0.4 * literal for full, literal in zip(floors["full"], floors["literal"], strict=True))
    alone = {
        variant: relative(
            Solving(CommFedBiOTopK, ONE, u_lr=0.2, u_steps=300, compression=10, variant=variant).v[-1], ONE
        )
        for variant in ("full", "literal")
    }
    assert alone["full"] < 0.005 < 0.05 < alone["literal"]


def test_error_feedback_pays():
    errors = [
        relative(
            Solving(CommFedBiOTopK, FIVE, u_lr=0.3, u_steps=200, compression=10, error_feedback=feedback).v[-1], FIVE
        )
        for feedback in (True, False)
    ]
    assert errors[0] < 0.2 * errors[1]


def theorem_1(mu, big, tau, a, reach, slope, steps):
    """The bound on E ||mean - v*||^2, with the factors of 2 that its own last display has; and on ||e||^2 per
    alpha^2."""
    g2 = 2 * big**2 * reach**2 + 2 * slope**2
    shrink = 1 - (1 - tau / 2) * (1 + 1 / a) ** 2
    c1, c2 = 0.75 * a**3 * reach**2, 768 * (2 * big + mu) * g2 / (mu**3 * tau * shrink)
    c3 = 24 * (steps + 2 * a) * g2 / mu**2
    left = (1 - tau) * (2 - tau) * (1 + 1 / a) ** 2 * g2 / (tau * shrink)
    return c1 / steps**3 + (c2 + c3) / steps**2, left


def test_theorem_1_holds():
    """Decaying steps, the average of the iterates: the bound holds, loosely, and the error falls faster than 1/I; so
    does the bound on what is left out, and Top-k's own: at most 1 - tau of what it is given."""
    mu, big, k, a, d = 0.1, 1.0, 12, 80.0, 60
    tau, errors = k / d, {}
    hessian, b, best = system(ONE)
    for steps in (50, 100, 200):
        settings = {"u_lr": 8 / (mu * a), "u_offset": a, "u_steps": steps, "compression": d // k, "average": True}
        run = Solving(CommFedBiOTopK, ONE, **settings)
        errors[steps] = float((run.result - best).square().sum())
        reach = max(float(v.norm()) for v in [*run.v, best])
        slope = float(b.norm())
        bound, left = theorem_1(mu, big, tau, a, reach, slope, steps)
        assert errors[steps] <= bound
        for i, alpha in enumerate(run.alphas[:-1]):
            given = alpha * (hessian @ run.v[i] - b) + run.e[i]
            size = float(run.e[i + 1].square().sum())
            assert size <= (1 - tau) * float(given.square().sum()) + 1e-12
            assert size <= run.alphas[i + 1] ** 2 * left
        assert run.alphas[10] == pytest.approx(8 / (mu * (10 + a)))
    assert np.polyfit(np.log(list(errors)), np.log(list(errors.values())), 1)[0] <= -1


# ---- count sketches -----------------------------------------------------------------------------------------------


def on_a_diagonal(recovered, **hyper):
    """Relative errors of the solver's steps on H = diag(h), 1500 coordinates, whose solution has 15 entries, so that
    gradients have heavy hitters. A matrix would be too large for the clients: here is one who multiplies by h."""
    rng = np.random.default_rng(3)
    h, best = torch.linspace(0.1, 1.0, 1500).double(), torch.zeros(1500).double()
    best[rng.choice(1500, 15, replace=False)] = torch.from_numpy(rng.normal(size=15))
    hyper = CommFedBiOSketch.Hyper(rows=5, compression=10, recovered=recovered, **EXACT, **hyper)
    algorithm, b = CommFedBiOSketch(hyper, None), h * best
    cohort, one = Cohort(1, np.zeros(1, int), np.ones(1), 1), np.ones(1, bool)
    v, left, last, errors = torch.zeros_like(b), torch.zeros_like(b), Change(torch.zeros_like(b), {}, {}, cohort), []
    for step in algorithm.schedule(hyper.u_lr):
        generator = algorithm.step(step, last, b)
        hashes = CountSketch(**next(generator).local_inputs["hashes"], width=algorithm.width(hyper, 1500))
        p = step.alpha * (h * v - b) + left if hyper.recovery == "two_round" else step.alpha * h * v
        try:
            asked = generator.send(Aggregate({"table": hashes.sketch(p)}, one, {})).broadcast["at"].long()
            left = p.scatter(0, asked, 0.0)
            generator.send(Aggregate({"values": p[asked]}, one, {}))
        except StopIteration as stop:
            last = stop.value
        v = v - last.change
        errors.append(float((v - best).norm() / best.norm()))
    return errors


def test_exact_values_make_count_sketches_descend():
    """Two rounds descend where the printed form, which subtracts estimates, has grown without bound (section 2.2a)."""
    exact = on_a_diagonal(5, recovery="two_round", u_lr=0.3, u_steps=120)
    assert exact[-1] < 0.01
    assert on_a_diagonal(30, recovery="server", u_lr=0.3, u_steps=60)[-1] > 10
    # With few entries of wide tables that form descends, too.
    few = on_a_diagonal(1, recovery="server", u_lr=0.1, u_steps=120)
    assert few[-1] < 0.8
    assert on_a_diagonal(1, recovery="zero_cells", u_lr=0.1, u_steps=120)[-1] < 1


@pytest.mark.parametrize("convexity", [{"ridge": 1e-3}, {"ridge": 0.0}, {"ridge": 0.0, "damping": 0.1}])
def test_an_estimate_that_grows_is_given_up(convexity):
    run = Solving(CommFedBiOTopK, FIVE, u_lr=5.0, u_steps=60, **convexity, **EVERYTHING)
    assert run.result is None
    assert len(run.alphas) < 10


def test_clients_find_the_step_by_power_iterations():
    run = Solving(CommFedBiOTopK, ONE, u_steps=1, power_steps=40, **EVERYTHING)
    assert run.alphas[0] == pytest.approx(1.0, rel=0.02)


# ---- who takes part -----------------------------------------------------------------------------------------------


KINDS = {
    "topk": (CommFedBiOTopK, {"compression": 3}),
    "random_k": (CommFedBiOTopK, {"compression": 3, "compressor": "random_k"}),
    "two_round": (CommFedBiOSketch, {"compression": 1, "rows": 3, "recovered": 20}),
}


@pytest.mark.parametrize("name", KINDS)
def test_clients_count_by_their_samples(name):
    """H = sum N_m H_m / N, and so do the messages: the virtual sequence is that of the weighted problem."""
    kind, change = KINDS[name]
    sizes = np.array([10.0, 20.0, 30.0, 40.0, 500.0])
    different = linear(spectrum(60, 0.1, 1.0, 0, clients=5, spread=0.2), np.random.default_rng(1).normal(size=60))
    run = Solving(kind, different, sizes=sizes, u_lr=0.3, u_steps=8, **change)
    hessian, b, _ = system(different, sizes)
    for i, alpha in enumerate(run.alphas):
        moved = (run.v[i + 1] - run.e[i + 1]) - (run.v[i] - run.e[i])
        assert torch.allclose(moved, -alpha * (hessian @ run.v[i] - b), atol=1e-10)
    assert torch.allclose(run.result, run.v[-1], atol=1e-10)
    assert (system(different)[0] - hessian).norm() > 0.1


@pytest.mark.grid
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("exchange", [1, 2, 3, 6])
def test_a_client_that_diverges_is_left_out_until_the_round_ends(name, exchange):
    """From then on it is as if it were not there: what is left is a smaller problem, which is solved."""
    kind, change = KINDS[name]
    settings = {"u_lr": 0.3, "u_steps": 100, **change}
    rest = linear(spectrum(60, 0.1, 1.0, 0, clients=5, spread=0.05)[[0, 1, 3, 4]], system(FIVE)[1].numpy())
    lost = Solving(kind, FIVE, diverging={exchange: 2}, **settings)
    assert lost.found[1].clients.tolist() == [0, 1, 3, 4]
    assert torch.allclose(lost.result, lost.v[-1], atol=1e-10)
    full = Solving(kind, FIVE, **settings)
    assert relative(lost.result, rest) < relative(full.result, FIVE) + 0.02
