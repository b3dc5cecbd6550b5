"""FedSep's convergence theory: checks C4 to C8 and C15 of fedsep.md, section 6.2, with its safe constants."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from bilevels import Problem, Run, quadratic

from hedgerow.algorithms.compressed.fedsep_bilevel import FedSepBilevel
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.optim.hypergradient import neumann

LOW, HIGH, STEP = 1.0, 10.0, 0.09
"""The spectrum of H, and the steps of decoders and series: a factor of .91 for each."""


def toy(clients=1, d=6, p=4, seed=0):
    """g_m = 1/2 y'H_m y - y'B_m x, f = 1/2 ||y - t||^2."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(clients)]
    hessians = np.stack([(q * np.linspace(LOW, HIGH, d)) @ q.T for q in bases])
    return quadratic(hessians, rng.normal(size=(clients, d, p)), np.eye(d), rng.normal(size=d), np.zeros((p, p)))


def step_of(problem, method, draws=1, size=None, seed=0, **hyper):
    """What `method(algorithm, data)` gives for so many independent draws of its mini-batches (client 0)."""
    defaults = {"batch_size": None, "steps": 1, "epochs": None, "decode_lr": STEP, "encode_lr": STEP}
    algorithm = FedSepBilevel(FedSepBilevel.Hyper(**{**defaults, "encode_batch_size": size, **hyper}), problem.task)
    rows, rng = problem.rows[0], np.random.default_rng(seed)
    n, streams = len(rows), {}
    for name, spec in algorithm.batches.items():
        taken = n if name == "decode" and spec.size is None else min(spec.size or n, n)
        shape = (draws, spec.steps or 1, taken)
        drawn = rng.integers(0, n, shape) if taken < n else np.broadcast_to(np.arange(n), shape)
        streams[name] = torch.tensor(drawn), torch.ones(shape, dtype=torch.bool)

    def one(streams):
        data = ClientData(rows, torch.zeros(n, dtype=torch.long), lambda x: x, streams, batched=True)
        return method(algorithm, data)

    return torch.func.vmap(one)(streams)


def noisy(spread, what, samples=256, d=4, seed=0):
    """g = 1/2 y'H y - y'x of samples whose Hessians ("H") or linear terms ("c") differ, in pairs of opposite sign."""
    rng = np.random.default_rng(seed)
    base = quadratic(np.diag(np.linspace(1, 3, d))[None], np.eye(d)[None], np.eye(d), np.ones(d), np.zeros((d, d)))
    half = np.sign(rng.normal(size=(samples // 2, d))) * spread
    noise = torch.from_numpy(np.concatenate([half, -half]))
    rows = base.rows.expand(1, samples, -1).clone()
    q = base.task._coefficients(rows[0])
    if what == "c":
        q.c.add_(noise)
    else:
        q.A.add_(torch.diag_embed(noise))
    return Problem(type(base.task)(base.task.module, clients=rows.mean(1)), rows), noise


def descent(algorithm, x):
    """(y, -grad f) at the full decode."""
    q = algorithm.task._coefficients(algorithm.task.clients[0])
    y = torch.linalg.solve(q.A, q.B @ x + q.c)
    return {"y": y}, {"y": q.e - q.D @ y}


# ---- the series -------------------------------------------------------------------------------------------------


def test_what_the_series_leaves_out():
    """C4: exactly H^-1 (I - tau H)^(Q + 1) v; it falls by 1 - tau mu per term, and grows where tau > 2 / L."""
    rng = np.random.default_rng(0)
    q = np.linalg.qr(rng.normal(size=(8, 8)))[0]
    h = torch.from_numpy((q * np.linspace(LOW, HIGH, 8)) @ q.T)
    v, eye = torch.from_numpy(rng.normal(size=8)), torch.eye(8).double()

    def error(terms, tau=STEP):
        found = neumann([lambda u: {"v": h @ u["v"]}] * terms, {"v": v}, tau)["v"]
        return torch.linalg.solve(h, v) - found

    sizes = []
    for terms in (1, 5, 20, 50, 100, 101):
        left = torch.linalg.solve(h, torch.linalg.matrix_power(eye - STEP * h, terms + 1) @ v)
        assert float((error(terms) - left).norm()) < 1e-12
        sizes.append(float(error(terms).norm()))
        assert sizes[-1] <= float(v.norm()) * (1 - STEP * LOW) ** (terms + 1) / LOW
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] / sizes[-2] == pytest.approx(0.91, abs=1e-4)
    assert float(error(60, 2.2 / HIGH).norm()) > 100 * float(error(10, 2.2 / HIGH).norm())
    assert float(error(60, 1.8 / HIGH).norm()) < 0.1 * float(error(10, 1.8 / HIGH).norm())


def test_the_bias_of_the_encoder():
    """Prop. C.3: ||E Enc~{v} - Enc{v}|| <= kappa (1 - tau mu)^(Q + 1) ||v||, with L the norm of all of g's Hessian."""
    problem, x = toy(), torch.ones(4).double()
    q = problem.task._coefficients(problem.means[0])
    size = float(torch.linalg.matrix_norm(torch.cat([q.A, q.B], 1), 2))

    def encode(algorithm, data):
        y, v = descent(algorithm, x)
        return algorithm.encode(algorithm.hyper, {"x": x}, y, None, v, data)["x"]

    exact = step_of(problem, encode, encoder="exact")[0]
    v = torch.linalg.solve(q.A, q.B @ x) - q.e
    assert torch.allclose(exact, q.B.T @ torch.linalg.solve(q.A, v), atol=1e-10)
    biases = [float((step_of(problem, encode, encode_steps=n)[0] - exact).norm()) for n in (0, 5, 20, 60)]
    for bias, n in zip(biases, (0, 5, 20, 60), strict=True):
        assert 0 < bias <= size / LOW * (1 - STEP * LOW) ** (n + 1) * float(v.norm())


def test_the_variance_of_the_encoder():
    """C7: of fresh batches, as 1 / b_x; the same batch for all factors tends to the mean of the inverses instead."""
    problem, noise = noisy(0.15, "H")
    x = torch.ones(4).double()

    def encode(algorithm, data):
        _, v = descent(algorithm, x)
        return algorithm.encode(algorithm.hyper, {"x": x}, {"y": x}, None, v, data)["x"]

    found = {b: step_of(problem, encode, 1500, b, encode_batch="fresh", encode_steps=8) for b in (2, 4)}
    assert 0.4 < float(found[4].var(0).sum() / found[2].var(0).sum()) < 0.6
    q = problem.task._coefficients(problem.means[0])
    # Enc{v} = -H^-1 v, for grad_xy g = -I.
    v = -descent(FedSepBilevel(FedSepBilevel.Hyper(), problem.task), x)[1]["y"]
    diagonal = q.A.diagonal()
    series = (1 - (1 - STEP * diagonal) ** 9) / diagonal * v
    spread = found[2].std(0) / 1500**0.5
    assert ((found[2].mean(0) - series).abs() <= 4.5 * spread + 1e-12).all()

    large, noise = noisy(0.8, "H", samples=64)
    bias = []
    for terms in (20, 80):
        draws = step_of(large, encode, 4000, 1, encode_batch="same", encode_steps=terms)
        wanted = ((1 - (1 - STEP * (diagonal + noise)) ** (terms + 1)) / (diagonal + noise)).mean(0) * v
        assert ((draws.mean(0) - wanted).abs() <= 4.5 * draws.std(0) / 4000**0.5 + 1e-12).all()
        bias.append(float((wanted - v / diagonal).norm()))
    tail = ((1 / (diagonal + noise)).mean(0) - 1 / diagonal) * v
    assert bias[-1] == pytest.approx(float(tail.norm()), rel=0.05)
    assert bias[-1] > 0.05 * float((v / diagonal).norm())


# ---- the decoder ------------------------------------------------------------------------------------------------


def decode(algorithm, data, x):
    return algorithm.decode(algorithm.hyper, {"x": x}, data)[0]["y"]


def test_a_decoder_without_noise_converges_by_091_per_step():
    """C5."""
    problem, x = toy(), torch.ones(4).double()
    q = problem.task._coefficients(problem.means[0])
    best = torch.linalg.solve(q.A, q.B @ x)
    errors = {
        n: float((step_of(problem, partial(decode, x=x), decode_steps=n)[0] - best).norm()) for n in (1, 10, 60, 61)
    }
    for n, error in errors.items():
        assert error**2 <= (1 - STEP * LOW) ** n * float(best.square().sum())
    assert errors[61] / errors[60] == pytest.approx(0.91, abs=1e-3)


def test_the_decoders_noise_floor():
    """C6, Lemma C.4: at most (1 - mu gamma)^I ||y_0 - y_x||^2 + 2 gamma sigma^2 / (mu b_y); half with half the step, or
    twice the batch."""
    problem, noise = noisy(1.0, "c")
    x, sigma = torch.ones(4).double(), float(noise.square().sum(1).mean())
    best = x / torch.linspace(1, 3, 4).double()

    def error(gamma, batch, steps):
        found = step_of(
            problem, partial(decode, x=x), 400, batch_size=batch, decode_lr=gamma, decode_steps=steps, seed=batch
        )
        mean = float((found - best).square().sum(1).mean())
        assert mean <= (1 - gamma) ** steps * float(best.square().sum()) + 2 * gamma * sigma / batch
        return mean

    floor = error(0.1, 2, 80)
    # Exactly: of each eigenvalue, gamma sigma^2 / (b lambda (2 - gamma lambda)).
    values = torch.linspace(1, 3, 4).double()
    wanted = (0.1 * noise.square().mean(0) / 2 / (values * (2 - 0.1 * values))).sum()
    assert floor == pytest.approx(float(wanted), rel=0.15)
    assert error(0.05, 2, 160) / floor == pytest.approx(0.5, abs=0.1)
    assert error(0.1, 4, 80) / floor == pytest.approx(0.5, abs=0.1)
    error(0.1, 2, 5)


# ---- the whole --------------------------------------------------------------------------------------------------


class Known:
    """h of a toy: its Hessian, minimiser, and its value at x."""

    def __init__(self, problem):
        self.problem, q = problem, problem.task._coefficients(problem.means)
        self.maps, self.t = torch.linalg.solve(q.A, q.B), q.e
        self.hessian = (self.maps.mT @ self.maps).mean(0)
        self.low, self.high = torch.linalg.eigvalsh(self.hessian)[[0, -1]].tolist()
        self.best = torch.linalg.solve(self.hessian, (self.maps.mT @ self.t[..., None])[..., 0].mean(0))
        self.size = max(float(torch.linalg.matrix_norm(torch.cat([a, b], 1), 2)) for a, b in zip(q.A, q.B, strict=True))

    def h(self, x):
        return float(0.5 * (self.maps @ x - self.t).square().sum(-1).mean())

    def slope(self, x):
        return self.hessian @ (x - self.best)

    def run(self, **hyper):
        defaults = {"steps": 1, "epochs": None, "decode_lr": STEP, "encode_lr": STEP}
        run = Run(FedSepBilevel, self.problem, **{**defaults, **hyper})
        run.server["x"] = {"x": torch.ones(4).double()}
        return run


@pytest.mark.exhaustive("convergence")
def test_truncation_leaves_floors_that_fall_by_091():
    """C15: ||x_T - x*|| as T grows, of the series and of the decoder, each cut short alone.

    A round is an affine map of x: its images of 0 and of the unit vectors tell its fixed point.
    """
    known, eye = Known(toy(clients=3, seed=2)), torch.eye(4).double()
    for what in ("encode_steps", "decode_steps"):
        floors = []
        for number in (20, 40, 70):
            settings = {"encoder": "exact"} if what == "decode_steps" else {"decode_steps": 110}
            run, images = known.run(lr=1.0 / known.high, **{**settings, what: number}), []
            for start in (0 * eye[0], *eye):
                run.server["x"] = {"x": start}
                images.append(run.rounds(1).server["x"]["x"])
            linear = torch.stack([image - images[0] for image in images[1:]], 1)
            assert float(torch.linalg.eigvals(linear).abs().max()) < 1
            floors.append(float((torch.linalg.solve(eye - linear, images[0]) - known.best).norm()))
        assert floors == sorted(floors, reverse=True)
        assert (floors[2] / floors[1]) ** (1 / 30) == pytest.approx(0.91, abs=0.01)


def test_h_falls_in_every_round():
    """C8: with I eta eta_g <= 1 / (2 L_h)."""
    known = Known(toy(clients=3, seed=1))
    run = known.run(
        lr=1e-3, steps=5, aggregation={"server_optimizer": {"lr": 100 / known.high}}, encoder="exact", decode_steps=60
    )
    values = [known.h(run.rounds(1).server["x"]["x"]) for _ in range(8)]
    assert all(b < a for a, b in pairwise([known.h(torch.ones(4).double()), *values]))


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(("terms", "decode_steps"), [(60, 60), (5, 60), (60, 5)])
def test_the_theorems_right_hand_side(terms, decode_steps):
    """Theorem 3.7 without noise, I = 1, C_f^2 in the drift's term, the factors that Lemma C.6 lost; L_xy = L_yy = 0."""
    known, eta = Known(toy(clients=3, seed=1)), 1e-4
    server = 1 / (2 * known.high * eta)
    run = known.run(
        lr=eta, aggregation={"server_optimizer": {"lr": server}}, encode_steps=terms, decode_steps=decode_steps
    )
    size, kappa = known.size, known.size / LOW
    left, points = [], []
    for _ in range(15):
        before = run.server["x"]["x"]
        moved = (run.rounds(1).server["x"]["x"] - before) / (server * eta)
        left.append(float(known.slope(before).square().sum() + 0.5 * moved.square().sum()))
        points.append(before)
    ys = torch.stack([known.maps @ x for x in points])
    slope = float((ys - known.t).norm(dim=-1).max())
    first = float(ys.norm(dim=-1).max()) ** 2
    # grad f is also taken at decoded points.
    slope = max(slope, slope + (1 - STEP * LOW) ** (decode_steps / 2) * first**0.5)
    drift = 12 * kappa**2 * size**2 * eta**2 * slope**2
    bias = 2 * (kappa * (1 - STEP * LOW) ** (terms + 1) * slope) ** 2
    decoder = 4 * 3 * kappa**2 * size**2 * (1 - STEP * LOW) ** decode_steps * first
    for rounds in (1, 5, 15):
        start = 2 * known.h(points[0]) / (rounds * eta * server)
        assert np.mean(left[:rounds]) <= start + drift + bias + decoder
    # What is left where nothing is cut short is the first term, of order 1 / T.
    if terms == decode_steps == 60:
        assert np.mean(left) <= 1.5 * 2 * known.h(points[0]) / (15 * eta * server)
