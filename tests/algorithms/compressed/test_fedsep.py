"""FedSep with any decoder: the checks of fedsep.md, section 6, on problems with known answers in double precision."""

import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bilevels import Problem, Run, quadratic
from paths import ROOT
from torch import nn

from hedgerow.algorithms.compressed.fedsep_bilevel import FedSepBilevel
from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.problems.bilevel_task import BilevelTask
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runs.runner import run
from hedgerow.platform.runtime.factory import build_data, check_task


def separated(problem: Problem, **hyper):
    """A FedSep on it. The learning stage sees the whole of a client's samples in each step."""
    defaults = {"batch_size": None, "steps": 1, "epochs": None}
    return FedSepBilevel(FedSepBilevel.Hyper(**{**defaults, **hyper}), problem.task)


def curved(clients=1, d=6, p=4, low=1.0, high=3.0, seed=0):
    """g_m = 1/2 y'H_m y - y'B_m x with eigenvalues from `low` to `high`, f_m = 1/2 ||y - t||^2."""
    rng = np.random.default_rng(seed)
    bases = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(clients)]
    hessians = np.stack([(q * np.linspace(low, high, d)) @ q.T for q in bases])
    couplings = rng.normal(size=(clients, d, p))
    return quadratic(hessians, couplings, np.eye(d), rng.normal(size=d), np.zeros((p, p)))


def rounds(problem, number, start=None, **hyper):
    """x after so many rounds."""
    run = Run(FedSepBilevel, problem, **{"steps": 1, "epochs": None, **hyper})
    if start is not None:
        run.server["x"] = {"x": torch.as_tensor(start, dtype=torch.float64)}
    return run.rounds(number)


def test_the_hand_case():
    """C1: g = y^2 - xy, f = (y - 3)^2 / 2 from x = 1."""
    one = np.ones((1, 1))
    problem = quadratic(2 * one[None], one[None], one, 3 * np.ones(1), 0 * one)
    settings = {"lr": 0.1, "decode_steps": 15, "decode_lr": 0.45, "encoder": "exact"}
    for steps, step in ((1, -0.125), (2, -0.2375), (5, -0.5118875)):
        moved = rounds(problem, 1, [1.0], **{**settings, "steps": steps}).server["x"]["x"]
        assert float(moved - 1) == pytest.approx(-step, abs=1e-7)
    assert float(rounds(problem, 50, [1.0], **settings).server["x"]["x"]) == pytest.approx(6 - 5 * 0.975**50, abs=1e-5)


class LogCosh(BilevelTask):
    """g = 1/2 y'H y - y'B x + sum log cosh y, f = 1/2 ||y - t||^2."""

    is_scored = False

    def __init__(self, seed=0):
        super().__init__(nn.Identity())
        generator = torch.Generator().manual_seed(seed)
        h = torch.randn(5, 5, generator=generator).double() / 3
        object.__setattr__(self, "h", h @ h.T + torch.eye(5).double())
        object.__setattr__(self, "b", torch.randn(5, 3, generator=generator).double())
        object.__setattr__(self, "t", torch.randn(5, generator=generator).double())

    def start(self):
        return {"x": {"x": torch.ones(3).double()}, "y": {"y": torch.zeros(5).double()}}

    def upper(self, x, y, batch):
        return 0.5 * (y["y"] - self.t).square().sum()

    def lower(self, x, y, batch):
        return 0.5 * y["y"] @ self.h @ y["y"] - y["y"] @ self.b @ x["x"] + y["y"].cosh().log().sum()


def no_data(steps):
    """Streams of so many empty mini-batches."""
    empty = Batch(torch.zeros(1), torch.zeros(1))
    return SimpleNamespace(batches=lambda stream: iter([empty] * steps))


@pytest.mark.parametrize(("encoder", "steps"), [("exact", 1), ("cg", 30), ("neumann", 120), ("unrolled", 1)])
def test_encoding_a_descent_is_the_hypergradient(encoder, steps):
    """C2 and C3: Enc{-grad f(y_x)} = grad h(x), by finite differences; the other sign would ascend."""
    task = LogCosh()
    big = float(torch.linalg.eigvalsh(task.h)[-1]) + 1
    hyper = {"decode_steps": 120, "decode_lr": 1 / big, "encode_lr": 1 / big, "encode_steps": steps}
    algorithm = FedSepBilevel(FedSepBilevel.Hyper(encoder=encoder, **hyper), task)
    x, hp, data = task.start()["x"], algorithm.hyper, no_data(120)

    def h(x):
        y, _ = algorithm.decode(hp, {"x": x}, data)
        return float(task.upper({}, y, None))

    y, trace = algorithm.decode(hp, x, data)
    found = algorithm.encode(hp, x, y, trace, {"y": task.t - y["y"]}, data)["x"]
    ends = [(h(x["x"] + e) - h(x["x"] - e)) / 2e-5 for e in 1e-5 * torch.eye(3).double()]
    assert found.tolist() == pytest.approx(ends, abs=1e-7)
    assert h(x["x"] - 1e-3 * found) < h(x["x"]) < h(x["x"] + 1e-3 * found)


@pytest.mark.exhaustive("convergence")
def test_truncation_leaves_a_bias_that_falls_geometrically():
    """C5 and C15: with spec(H) = [1, 10] and steps of .09 by .91 per term or step."""
    problem = curved(high=10.0)
    best = rounds(problem, 1, np.ones(4), lr=0.1, decode_steps=250, decode_lr=0.09, encoder="exact").server["x"]["x"]
    for what in ("encode_steps", "decode_steps"):
        errors = []
        for steps in (20, 30, 60, 70):
            settings = {"encode_steps": 250, "decode_steps": 250, "decode_lr": 0.09, "encode_lr": 0.09, what: steps}
            x = rounds(problem, 1, np.ones(4), lr=0.1, **settings).server["x"]["x"]
            errors.append(float((x - best).norm()))
        assert errors == sorted(errors, reverse=True)
        assert (errors[3] / errors[2]) ** 0.1 == pytest.approx(0.91, abs=0.02)


def test_step_sizes_up_to_twice_the_curvature_contract():
    """C8: x <- (1 - r) x in the curvature's own direction; 1.9 contracts, 2.1 does not."""
    problem = curved(d=3, p=1)
    c = problem.task._coefficients(problem.means.mean(0))
    slope = torch.linalg.solve(c.A, c.B)[:, 0]
    curvature = float(slope @ slope)
    best = float((slope @ c.e) / curvature)
    for ratio, wanted in ((0.5, 0.5**30), (1.9, 0.9**30), (2.1, 1.1**30)):
        settings = {"lr": ratio / curvature, "decode_steps": 30, "decode_lr": 0.5, "encoder": "exact"}
        x = float(rounds(problem, 30, [best + 1.0], **settings).server["x"]["x"])
        assert abs(x - best) == pytest.approx(wanted, rel=1e-4, abs=1e-7)


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize(
    ("lr", "steps", "wanted"), [(0.1, 1, 0.8), (0.1, 5, 0.692502), (0.1, 50, 0.501292), (0.001, 5, 0.799038)]
)
def test_drift(lr, steps, wanted):
    """C9: y = x, f_1 = y^2 / 2, f_2 = 2 (y - 1)^2: the fixed point moves with local steps."""
    one = np.ones((1, 1))
    problem = quadratic(np.ones((2, 1, 1)), np.ones((2, 1, 1)), one, np.zeros(1), 0 * one)
    q = problem.task._coefficients(problem.rows[:, 0])
    q.D[1], q.e[1] = 4.0, 4.0
    settings = {"lr": lr, "steps": steps, "decode_steps": 1, "decode_lr": 1.0, "encoder": "exact"}
    aggregation = {"server_optimizer": {"lr": 100.0} if lr < 0.01 else {}}
    x = rounds(problem, 10 if steps == 50 else 120, [0.3], **settings, aggregation=aggregation).server["x"]["x"]
    assert float(x) == pytest.approx(wanted, abs=1e-5)


def test_it_converges_at_the_rate_of_h():
    """C15: five clients, exact: ||x - x*|| contracts by 1 - mu_h / L_h at least, until y is no longer exact."""
    problem = curved(clients=5, d=6, p=4, seed=2)
    q = problem.task._coefficients(problem.means)
    maps = torch.linalg.solve(q.A, q.B)
    hessian = (maps.mT @ maps).mean(0)
    low, high = torch.linalg.eigvalsh(hessian)[[0, -1]].tolist()
    best = torch.linalg.solve(hessian, (maps.mT @ q.e[..., None])[..., 0].mean(0))
    settings = {"lr": 1 / high, "decode_steps": 30, "decode_lr": 0.5, "encoder": "exact"}
    run = rounds(problem, 0, np.ones(4), **settings)
    errors = [float((torch.ones(4) - best).norm())]
    for _ in range(30):
        errors.append(float((run.rounds(1).server["x"]["x"] - best).norm()))
    assert all(b <= (1 - low / high) * a + 1e-9 for a, b in pairwise(errors))
    assert errors[-1] < 1e-5 * errors[0]


def test_the_identity_decoder_is_fedavg():
    """C16: g = 1/2 ||y - x||^2: x moves by the mean of how the clients' models move."""
    d = 3
    problem = quadratic(
        np.stack([np.eye(d)] * 2), np.stack([np.eye(d)] * 2), np.diag([1.0, 2.0, 3.0]), np.ones(d), np.zeros((d, d))
    )
    settings = {"lr": 0.1, "steps": 4, "decode_steps": 1, "decode_lr": 1.0, "encoder": "exact"}
    x = rounds(problem, 3, np.zeros(d), **settings).server["x"]["x"]
    plain = torch.zeros(d).double()
    for _ in range(12):
        plain = plain - 0.1 * (torch.diag(torch.tensor([1.0, 2.0, 3.0])).double() @ plain - 1)
    assert torch.allclose(x, plain, atol=1e-10)


@pytest.mark.exhaustive("convergence")
def test_fresh_batches_make_the_series_unbiased():
    """C7: of noisy Hessians, each factor its own: the mean over draws is that of the mean Hessian; with the same one
    for all factors it is not. And the variance falls with the batch."""
    rng = np.random.default_rng(0)
    d, n = 2, 64
    noisy = np.stack([np.diag(rng.choice([0.5, 7.5], size=d)) for _ in range(n)])
    base = quadratic(noisy, np.stack([np.eye(d)] * n), np.eye(d), np.ones(d), np.zeros((d, d)))
    problem = Problem(type(base.task)(base.task.module, clients=base.rows.mean(0)), base.rows.permute(1, 0, 2))
    settings = {"lr": 1.0, "decode_steps": 1, "decode_lr": 1e-9, "encode_lr": 0.1, "encode_steps": 8}

    def drawn(kind, size, repeats=70):
        run = rounds(problem, 0, np.zeros(d), **settings, encode_batch=kind, encode_batch_size=size)
        start, found = run.server, []
        for _ in range(repeats):
            run.server = tree_map(lambda leaf: leaf, start)
            found.append(-run.rounds(1).server["x"]["x"])
        return torch.stack(found)

    mean = problem.task._coefficients(problem.means[0]).A.diagonal()
    series = sum(0.1 * (1 - 0.1 * mean) ** q for q in range(9))
    expected = -series * 1.0
    fresh, same = drawn("fresh", 1), drawn("same", 1)
    assert (fresh.mean(0) - expected).abs().max() < 4 * (fresh.std(0) / 70**0.5).max()
    assert (same.mean(0) - expected).abs().max() > 4 * (same.std(0) / 70**0.5).max()
    # Of eight samples about an eighth of the variance.
    assert float(drawn("fresh", 8).var(0).mean() / fresh.var(0).mean()) < 0.35


# ---- on the platform, with a decoder of one's own -----------------------------------------------------------------


OWN = ROOT / "examples" / "near_decoder.py"


def own_decoder(mode="vmap", encoder="neumann", **problem):
    return {
        "name": "own",
        "rounds": 3,
        "clients_per_round": "all",
        "task": {
            "data": {"name": "digits"},
            "partition": {
                **{"kind": "labels", "clients": 5, "labels_per_client": 2, "samples_per_client": 60},
                **{"upper_level_fraction": 0.3, "client_test_fraction": 0.2},
            },
            "model": {"name": "logreg"},
            "problem": {"kind": "own", "name": "own_decoder.Near", **problem},
        },
        "algorithm": {
            **{"name": "fedsep_bilevel", "lr": 0.1, "epochs": None, "steps": 3, "batch_size": 10},
            **{"decode_lr": 0.3, "encode_lr": 0.3, "encoder": encoder, "encode_steps": 4},
        },
        "engine": {"mode": mode, "chunk": 2 if mode == "vmap" else "auto"},
        "resources": {"executor": "inline"},
        "tracking": {"enabled": False},
    }


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_decoder.py").write_text(OWN.read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_decoder", raising=False)
    return tmp_path


@pytest.mark.grid(keep=1)
@pytest.mark.parametrize("encoder", ["neumann", "cg", "unrolled"])
def test_a_decoder_of_ones_own(own_module, encoder):
    ran = [
        run(parse_experiment({**own_decoder(mode, encoder), "output": str(own_module / mode)}))
        for mode in ("loop", "vmap")
    ]
    for name, p in ran[0].parameters.items():
        assert np.abs(p - ran[1].parameters[name]).max() < 1e-5
    assert ran[0].records[-1]["test_accuracy"] > 0.7
    assert ran[0].records[-1]["test_accuracy"] == pytest.approx(ran[1].records[-1]["test_accuracy"], abs=0.02)


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        ({"name": "own_decoder.Far"}, "task.problem.name: module 'own_decoder' has no 'Far'"),
        ({"name": "collections.Counter"}, "task.problem.name: 'collections.Counter' is not a bilevel problem"),
        ({"args": {"strenght": 2.0}}, "task.problem.args: own_decoder.Near cannot be constructed from these"),
    ],
)
def test_a_decoder_that_is_none_is_said_before_any_work(own_module, problem, sentence):
    parsed = parse_experiment(own_decoder(**problem))
    dataset, clients = build_data(parsed, None)
    with pytest.raises(UserError) as caught:
        check_task(parsed, dataset, clients)
    assert sentence in str(caught.value)


def test_without_a_problem_there_is_nothing_to_decode():
    wanted = own_decoder()
    wanted["task"]["problem"] = None
    with pytest.raises(UserError, match="fedsep_bilevel is a bilevel algorithm"):
        parse_experiment(wanted)
