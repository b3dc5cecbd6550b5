"""What FedBiO's analysis promises of momentum and of local lower levels, and identities between methods, on the
quadratic problem in double precision (fedbio.md, section 6.1).
"""

import numpy as np
import pytest
import torch
from bilevels import HET, LOCAL, STEPS, Problem, Run, far, oracles, problem

from hedgerow.algorithms.bilevel.derivatives import Derivatives, MiniBatch
from hedgerow.algorithms.bilevel.fedbio import FedBiO
from hedgerow.algorithms.bilevel.fedbio_local import FedBiOLocal
from hedgerow.algorithms.bilevel.fedbioacc import FedBiOAcc
from hedgerow.algorithms.bilevel.fedbioacc_local import FedBiOAccLocal
from hedgerow.algorithms.bilevel.local_bo import LocalBO
from hedgerow.algorithms.bilevel.mrbo import MRBO
from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import tree_map, zeros_like
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.federated.stem import Stem
from hedgerow.algorithms.federated.storm import STORM
from hedgerow.algorithms.optim.storm_momentum import Storm, alpha
from hedgerow.algorithms.problems.quadratic import Coefficients, upper

MIDDLE_AND_END = slice(30, 60), slice(-60, None)
CONSTANT = {"alpha_growth": 0.0, "alpha_offset": 1.0, "alpha_delta": 1.0}


class OneLevel(Problem):
    """f(x) of a problem in which it does not depend on y, as a task of one level."""

    def __init__(self, quadratic):
        super().__init__(_OneLevelTask(quadratic.task.module), quadratic.rows)


class _OneLevelTask(Task):
    def init(self, seed=None):
        return {"x": super().init()["x"]}

    def loss(self, w, batch):
        q = Coefficients.of(batch.x, 4, 6)
        return upper(q, w["x"], torch.zeros(6).double()).mean()


# ---- FedBiOAcc --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive("convergence")
def test_momentum_takes_the_drift_away():
    """C6: constant alpha: less the smaller c alpha^2, never more than FedBiO's; none with two local steps."""
    errors = [
        Run(FedBiOAcc, HET, steps=8, c=c, **CONSTANT, **LOCAL).rounds(30).distance() for c in (1.0, 0.1, 0.01, 0.0)
    ]
    plain = Run(FedBiO, HET, steps=8, **LOCAL).rounds(30).distance()
    assert plain > errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[3] < 1e-8
    assert Run(FedBiOAcc, HET, steps=2, c=0.3, **CONSTANT, **LOCAL).rounds(120).distance() < 1e-8


def test_accelerated_with_full_forgetting_is_fedbio_step_by_step():
    """C23a: c alpha^2 = 1 and I = 1: FedBiO with steps gamma alpha, ... . Both messages of a round are counted."""
    accelerated = Run(FedBiOAcc, HET, steps=1, c=1.0, **CONSTANT, **STEPS)
    plain = Run(FedBiO, HET, steps=1, **STEPS)
    for _ in range(20):
        assert far(accelerated.rounds(1).server, plain.rounds(1).server) < 1e-14
    assert accelerated.exchanges == 2 * plain.exchanges


def test_first_momenta_are_averaged_on_request():
    averaged, own = (Run(FedBiOAcc, HET, steps=3, sync_init=sync, **STEPS).rounds(1) for sync in (True, False))
    assert far(averaged.server, own.server) > 1e-4
    equal = problem(heterogeneity=0.0)
    averaged, own = (Run(FedBiOAcc, equal, steps=3, sync_init=sync, **STEPS).rounds(1) for sync in (True, False))
    assert far(averaged.server, own.server) < 1e-13


@pytest.mark.exhaustive("convergence")
def test_momenta_are_better_estimates_than_gradients():
    """C8: the squared error of the mean of x's: sigma^2 p / (b M) for FedBiO's, and falling for FedBiOAcc's."""
    noisy = problem(noise=1.0, samples=64)
    directions = oracles(noisy)
    run = Run(FedBiOAcc, noisy, steps=1, batch_size=1, c=1.0, **STEPS)

    def error(rounds):
        found = []
        for _ in range(rounds):
            state = run.rounds(1).states
            exact = directions(state["z"])["x"]["x"].mean(0)
            found.append(float((state["momenta"]["x"]["x"].mean(0) - exact).square().sum()))
        return np.mean(found[-20:])

    early, late = error(40), error(400)
    # FedBiO's direction at the same points: r has unit noise in p = 4 dimensions, and 8 clients are averaged.
    hyper, z = run.algorithm.hyper, run.states["z"]
    looker, plain = Derivatives(noisy.task, hyper), []
    for _ in range(200):
        rows = noisy.rows[torch.arange(8), torch.from_numpy(run.rng.integers(0, 64, 8))][:, None]

        def one(rows, z):
            batch = Batch(rows, torch.zeros(1), torch.ones(1))
            return looker.directions(z, MiniBatch(batch, batch, batch, (batch,)))[0]["x"]["x"]

        found = torch.func.vmap(one)(rows, z).mean(0) - directions(z)["x"]["x"].mean(0)
        plain.append(float(found.square().sum()))
    assert np.mean(plain) == pytest.approx(4 / 8, rel=0.25)
    assert late < early / 3
    assert late < np.mean(plain) / 10


@pytest.mark.exhaustive("convergence")
def test_acceleration_goes_on_where_fedbio_flattens():
    """C9, and C22: fewer exchanges to the same accuracy late in the run, though each round has two."""
    noisy = problem(noise=1.0, samples=64)
    settings = {**STEPS, "steps": 5, "batch_size": 1}
    plain, fast = Run(FedBiO, noisy, **settings), Run(FedBiOAcc, noisy, c=1.0, **settings)
    seen = {run: [run.rounds(1).hypergradient() for _ in range(300)] for run in (plain, fast)}
    middle, end = ({run: np.mean(values[part]) for run, values in seen.items()} for part in MIDDLE_AND_END)
    assert end[fast] < end[plain] / 4
    assert end[fast] < middle[fast] / 2
    assert end[plain] > middle[plain] / 2
    # Exchanges until the mean over 20 rounds stays below what FedBiO ends at: two per round here, one there.
    smooth = {run: np.convolve(values, np.ones(20) / 20, "valid") for run, values in seen.items()}
    reached = {run: each * int(np.argmax(smooth[run] <= end[plain])) for run, each in ((plain, 1), (fast, 2))}
    assert 0 < reached[fast] < reached[plain]


def theorem_2(*, batch, clients, steps, noise, strong_convexity, smoothness):
    """Constants of FedBiOAcc's Theorem 2: delta, offset, growth, and the momentum constants of x, y and u.

    noise: sigma.
    smoothness: L-tilde, of the hypergradient.
    The resulting steps are far too small for training.
    """
    bm, big = batch * clients, smoothness
    c_x = 64 / (9 * bm) + 2 / (3 * bm**2)
    c_y = 48 * big**2 / (bm * strong_convexity**2) + 2 / (3 * bm**2)
    bar = max(2.0, 16**2 * steps**4.5 * big**2, c_x**1.5, c_y**1.5)
    return {
        "alpha_delta": (bm * noise) ** (2 / 3) / (16 * big) ** (1 / 3),
        "alpha_offset": (bm * noise) ** 2 * bar,
        "alpha_growth": noise**2,
        "c_x": c_x,
        "c_y": c_y,
        "c_u": c_y,
    }


def test_step_sizes_fall_as_they_should():
    """C20 and C21."""
    constants = theorem_2(batch=4, clients=8, steps=5, noise=1.0, strong_convexity=0.5, smoothness=2.0)
    own = {name: value for name, value in constants.items() if name.startswith("alpha")}
    for hyper in (Storm(name="x", c=0.5, steps=5), Storm(name="x", c=0.0, steps=5, **own)):
        alphas = np.array([alpha(hyper, t) for t in range(2000)])
        delta, growth = hyper.alpha_delta, hyper.alpha_growth
        assert hyper.alpha_offset >= 2 * growth
        steps = 1 / alphas[1:] - 1 / alphas[:-1]
        assert (steps <= 2 ** (2 / 3) * growth / (3 * delta**3) * alphas[1:] ** 2 + 1e-15).all()
        assert hyper.alpha_offset >= 6 * growth
        assert (alphas[:-5] / alphas[5:] <= 2).all()
        assert (np.cumsum(alphas[1:] ** 3) <= delta**3 / growth * np.log(np.arange(2, 2001))).all()
        assert hyper.c * alphas[1] ** 2 <= 1
    smallest = max(constants["c_x"], constants["c_y"], constants["c_u"]) * alphas[1] ** 2
    assert smallest <= 1
    # Round by round it is the same sequence.
    hyper = Storm(name="x", steps=5)
    assert alpha(hyper.at(4), 2) == pytest.approx(alpha(hyper, 17))


def test_forgetting_more_than_all_is_refused():
    with pytest.raises(ValueError, match="lower c or alpha_delta"):
        Storm(name="x", c=1.3)


# ---- one lower level per client ---------------------------------------------------------------------------------


def test_local_fedbio_is_as_exact_as_its_series():
    """C11: the distance to the solution of the local problem falls with Q; y is exact."""
    errors = [
        Run(FedBiOLocal, HET, steps=1, neumann_terms=terms, **LOCAL).rounds(100).distance(local=True)
        for terms in (0, 2, 5)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 4


@pytest.mark.exhaustive("convergence")
def test_local_fedbio_drifts_and_momentum_takes_it_away():
    """C12 and C13."""
    settings = {**LOCAL, "neumann_terms": 3}
    floor = Run(FedBiOLocal, HET, steps=1, **settings).rounds(120).server["x"]["x"]
    drifts = [
        float((Run(FedBiOLocal, HET, steps=steps, **settings).rounds(120 // steps).server["x"]["x"] - floor).norm())
        for steps in (2, 8)
    ]
    assert 1e-4 < drifts[0] < drifts[1]
    # Without y's momentum being averaged its estimate does not change where the client's own y settles.
    left = [
        float(
            (Run(FedBiOAccLocal, HET, steps=8, c=c, **CONSTANT, **settings).rounds(20).server["x"]["x"] - floor).norm()
        )
        for c in (1.0, 0.1, 0.01)
    ]
    assert left == sorted(left, reverse=True)
    assert left[-1] < left[0] / 5


# ---- identities -------------------------------------------------------------------------------------------------


def test_accelerated_local_fedbio_of_one_client_is_mrbo():
    """C23b: every variable, with local steps and momentum."""
    one = problem(clients=1)
    settings = {**LOCAL, "neumann_terms": 4, "steps": 3, "c": 0.5}
    local, pooled = Run(FedBiOAccLocal, one, **settings), Run(MRBO, one, **settings)
    for _ in range(5):
        local.rounds(1), pooled.rounds(1)
        assert far(local.server["x"], pooled.server["x"]) < 1e-13
        assert far(tree_map(lambda leaf: leaf[0], local.states["y"]), pooled.server["y"]) < 1e-13
    assert pooled.exchanges == 0


@pytest.mark.parametrize("kind", [FedBiO, FedBiOAcc, LocalBO])
def test_equal_clients_are_one(kind):
    """C23c: with local steps, and without noise."""
    own = {"neumann_terms": 3} if kind is LocalBO else {}
    runs = [Run(kind, problem(clients=m, heterogeneity=0.0), steps=6, **STEPS, **own).rounds(4).server for m in (1, 5)]
    assert far(*runs) < 1e-7


@pytest.mark.parametrize("kind", [FedBiO, FedBiOAcc])
def test_the_order_of_clients_does_not_matter(kind):
    """C23d."""
    turned = problem()
    turned.rows = turned.rows.flip(0)
    runs = [Run(kind, quadratic, steps=4, **STEPS).rounds(4).server for quadratic in (HET, turned)]
    assert far(*runs) < 1e-13


def test_averaging_keeps_the_mean():
    """C24: the server's variables are the mean of what one client alone would have sent, client by client."""
    together = Run(FedBiO, HET, steps=5, **STEPS).rounds(1).server
    alone = []
    for k in range(8):
        one = problem()
        one.rows = one.rows[k : k + 1]
        alone.append(Run(FedBiO, one, steps=5, **STEPS).rounds(1).server)
    assert far(together, tree_map(lambda *parts: torch.stack(parts).mean(0), *alone)) < 1e-14


def test_without_a_lower_level_they_are_their_single_level_kin():
    """C23e: f independent of y and u = 0: FedBiO is local gradient descent, FedBiOAcc is STEM, on f(x)."""
    plain = problem()
    q = plain.rows.clone()
    # D = 0 and e = 0 leave f = 1/2 x'Px - r'x.
    d, p = 6, 4
    start = d * d + d * p + d
    q[..., start : start + d * d + d] = 0
    plain.rows = q
    fed = Run(FedBiO, plain, steps=4, **STEPS).rounds(3)
    fast = Run(FedBiOAcc, plain, steps=4, c=0.5, **STEPS).rounds(3)
    assert far(fed.server["u"], zeros_like(fed.server["u"])) == 0
    P = q[:, 0, start + d * d + d : start + d * d + d + p * p].reshape(8, p, p)  # noqa: N806
    r = q[:, 0, -p:]

    def slope(x):
        return (P @ x[..., None])[..., 0] - r

    x = torch.zeros(8, p).double()
    for t in range(12):
        x = x - STEPS["upper_lr"] * slope(x)
        if t % 4 == 3:
            x = x.mean(0).expand(8, p)
    assert torch.allclose(fed.server["x"]["x"], x[0], atol=1e-14)
    # STEM: x and its momentum, both averaged every four steps.
    hyper = Storm(name="x", c=0.5, steps=4)
    x = torch.zeros(8, p).double()
    momentum = slope(x)
    for t in range(1, 13):
        new = x - STEPS["upper_lr"] * alpha(hyper, t) * momentum
        if t % 4 == 0:
            new = new.mean(0).expand(8, p)
        momentum = slope(new) + (1 - 0.5 * alpha(hyper, t) ** 2) * (momentum - slope(x))
        if t % 4 == 0:
            momentum = momentum.mean(0).expand(8, p)
        x = new
    assert torch.allclose(fast.server["x"]["x"], x[0], atol=1e-14)
    # And so does STEM itself, and STORM with one client.
    stem = Run(Stem, OneLevel(plain), steps=4, c=0.5, lr=STEPS["upper_lr"]).rounds(3)
    assert torch.allclose(stem.server["w"]["x"], x[0], atol=1e-14)
    alone = OneLevel(plain)
    alone.rows = alone.rows[:1]
    kinds = [Run(kind, alone, steps=4, c=0.5, lr=STEPS["upper_lr"]).rounds(3) for kind in (Stem, STORM)]
    assert torch.allclose(kinds[0].server["w"]["x"], kinds[1].server["w"]["x"], atol=1e-14)
    assert kinds[1].exchanges == 0


# ---- counters -----------------------------------------------------------------------------------------------------


def test_what_a_step_costs_is_counted():
    """Section 2.6: FedBiO one gradient of each level, one product of each kind; FedBiOAcc twice that; local: Q HVPs."""
    wanted = {
        FedBiO: (1, 1, 1, 1),
        FedBiOAcc: (2, 2, 2, 2),
        FedBiOLocal: (1, 1, 1, 3),
        FedBiOAccLocal: (2, 2, 2, 6),
    }
    names = ["gradients_f", "gradients_g", "jacobian_products", "hessian_products"]
    for kind, each in wanted.items():
        own = {"neumann_terms": 3} if "Local" in kind.__name__ else {}
        for share in (True, False):
            settings = {**STEPS, **own, "steps": 4, "single_batch": share}
            run = Run(kind, HET, **settings).rounds(1)
            before = dict(run.spent)
            run.rounds(1)
            # Eight clients, four steps, two samples each.
            spent = [(run.spent[f"spent_{name}"] - before[f"spent_{name}"]) / (8 * 4 * 2) for name in names]
            assert tuple(spent) == each
