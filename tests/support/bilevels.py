"""Bilevel algorithms without the platform, in double precision, on the quadratic problem."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers import build
from torch import Tensor

from hedgerow.algorithms.bilevel.derivatives import Derivatives, MiniBatch
from hedgerow.algorithms.bilevel.fedbio import FedBiO
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange
from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.algorithms.problems import Quadratic, QuadraticModel
from hedgerow.platform.data.sources.quadratic_data import QuadraticData


@dataclass
class Problem:
    """The toy problem. rows (m, samples, features): each client's samples, for both training and validation."""

    task: Quadratic
    rows: Tensor

    @property
    def means(self) -> Tensor:
        return self.rows.mean(1)

    def best(self, local: bool = False) -> dict[str, Tensor]:
        return self.task.solution(local=local)


def problem(**settings: Any) -> Problem:
    """settings: heterogeneity, noise, ... as in the experiment file."""
    config = QuadraticData(**settings)
    x = torch.from_numpy(config.load(Path()).x_train).double().reshape(config.clients, config.samples, -1)
    module = QuadraticModel(config.upper, config.lower).double()
    return Problem(Quadratic(module, clients=x.mean(1)), x)


def quadratic(hessians: Any, couplings: Any, outer: Any, e: Any, upper: Any) -> Problem:
    """Clients with g_m = 1/2 y'A_m y - y'B_m x and the common f = 1/2 y'D y - e'y + 1/2 x'P x.

    hessians: A (m, d, d); couplings: B (m, d, p); outer: D; upper: P.
    """
    m, d, p = couplings.shape
    common = (np.zeros(d), outer, e, upper, np.zeros(p))
    rows = np.stack([np.concatenate([np.ravel(a) for a in (hessians[i], couplings[i], *common)]) for i in range(m)])
    x = torch.from_numpy(rows)[:, None]
    return Problem(Quadratic(QuadraticModel(p, d).double(), clients=x[:, 0]), x)


def linear(hessians: Any, b: Any) -> Problem:
    """A linear system: H is the mean of `hessians` (m, d, d), grad_y f = b, and grad_xy g v = v."""
    m, d, _ = hessians.shape
    return quadratic(hessians, np.broadcast_to(-np.eye(d), (m, d, d)), np.zeros((d, d)), -b, np.zeros((d, d)))


def spectrum(d: int, low: float, high: float, seed: int, clients: int = 1, spread: float = 0.0) -> np.ndarray:
    """Matrices (clients, d, d); the mean has eigenvalues evenly from low to high, clients differ by symmetric noise."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    mean = (q * np.linspace(low, high, d)) @ q.T
    noise = rng.normal(size=(clients, d, d)) * spread / np.sqrt(d)
    noise = noise + noise.transpose(0, 2, 1)
    return mean + noise - noise.mean(0)


def system(problem: Problem, sizes: np.ndarray | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns H, b, and the solution of H v = b. sizes: the clients' numbers of samples; None: all equal."""
    shares = torch.ones(len(problem.means)).double() if sizes is None else torch.from_numpy(sizes).double()
    mean = problem.task._coefficients(torch.tensordot(shares / shares.sum(), problem.means, 1))
    return mean.A, -mean.e, torch.linalg.solve(mean.A, -mean.e)


def relative(v: Tensor, problem: Problem) -> float:
    """Relative error of a solution."""
    best = system(problem)[-1]
    return float((v - best).norm() / best.norm())


class Run:
    """Rounds of an algorithm with all clients at once. server: server state; states: client states, stacked."""

    def __init__(self, kind: type[Algorithm], problem: Problem, seed: int = 0, **hyper: Any):
        defaults = {"ridge": 0.0, "batch_size": None}
        values = {name: value for name, value in defaults.items() if name in kind.Hyper.model_fields} | hyper
        self.composed = build(kind, values, problem.task)
        self.algorithm = self.composed.inner
        self.problem, self.m = problem, len(problem.rows)
        self.rng = np.random.default_rng(seed)
        self.server = self.composed.init_server()
        self.states = tree_map(lambda leaf: leaf.expand(self.m, *leaf.shape), self.composed.init_client())
        self.lasting = set(self.states)
        self.here = np.arange(self.m)
        """Ids of the clients in `states`: clients that are no longer addressed are dropped."""
        self.diverging: dict[int, int] = {}
        """Number of an exchange with clients -> the client whose reply is not finite."""
        self.round = self.exchanges = 0
        self.spent: dict[str, float] = {}

    def rounds(self, number: int) -> "Run":
        for _ in range(number):
            self.round += 1
            everybody = np.arange(self.m)
            generator = self.composed.round(self.server, Cohort(self.round, everybody, np.ones(self.m), self.m))
            reply: Any = None
            while reply is not self:
                try:
                    request = generator.send(reply)
                    reply = list(map(self.carry_out, request)) if isinstance(request, list) else self.carry_out(request)
                except StopIteration as stop:
                    self.server, reply = stop.value, self
            # State that a step keeps for one round only is dropped.
            self.states = {name: tree for name, tree in self.states.items() if name in self.lasting}
        return self

    def distance(self, name: str = "x", local: bool = False) -> float:
        """Distance of a server variable from the solution."""
        return float((self.server[name]["x" if name == "x" else "y"] - self.problem.best(local)[name]).norm())

    def hypergradient(self) -> float:
        """||grad h||^2 at the server's x."""
        return float(self.problem.task.hypergradient(self.server["x"]["x"]).square().sum())

    def carry_out(self, exchange: Exchange) -> Aggregate:
        pooled = exchange.site == "pool"
        self.exchanges += not pooled
        rows = self.problem.rows.flatten(0, 1)[None] if pooled else self.problem.rows[exchange.clients]
        at = np.searchsorted(self.here, exchange.clients)
        states = {} if pooled else tree_map(lambda leaf: leaf[at], self.states)
        hp = self.composed.hyper.at(self.round)
        # On the platform, single precision suffices for these values.
        down = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, exchange.received)
        own = exchange.received_per_client
        everyone = torch.arange(len(rows)), own, states, rows, self.streams(rows, exchange.batches)

        def one(_: Tensor, own: Tree, state: Tree, rows: Tensor, streams: Any) -> Any:
            labels = torch.zeros(len(rows), dtype=torch.long)
            data = ClientData(rows, labels, lambda x: x, streams, batched=True)
            return tuple(exchange.step(hp, {**down, **own}, state, data))[:3]

        up, state, metrics = torch.func.vmap(one)(*everyone)
        mask = np.ones(len(rows), bool)
        if not pooled:
            mask &= exchange.clients != self.diverging.get(self.exchanges, -1)
            self.states, self.here = tree_map(lambda leaf: leaf[mask], state), exchange.clients[mask]
        for name, values in metrics.items():
            self.spent[name] = self.spent.get(name, 0.0) + float(values.sum())
        up = tree_map(lambda leaf: leaf[mask], up)
        if exchange.reduce == "mean":
            weights = (np.ones(len(rows)) if exchange.weights is None else exchange.weights.astype(float))[mask]
            shares = torch.from_numpy(weights / weights.sum())
            up = tree_map(lambda leaf: torch.tensordot(shares, leaf, 1), up)
        return Aggregate(up, mask, {})

    def streams(self, rows: Tensor, batches: Mapping[str, BatchSpec]) -> dict[str, tuple[Tensor, Tensor]]:
        """Mini-batches drawn independently with replacement, or all samples in order."""
        result = {}
        m, n = rows.shape[:2]
        for name, spec in batches.items():
            steps, size = 1 if spec.steps is None else spec.steps, min(spec.size or n, n)
            shape = (m, steps, size)
            positions = np.broadcast_to(np.arange(n), shape) if size == n else self.rng.integers(0, n, shape)
            result[name] = torch.tensor(positions), torch.ones(shape, dtype=torch.bool)
        return result


HET = problem()
STEPS = {"lr": 0.1, "u_lr": 0.1, "upper_lr": 0.05, "single_batch": True}
"""Step sizes of methods with a common lower level."""
LOCAL = {"lr": 0.2, "u_lr": 0.2, "upper_lr": 0.1, "single_batch": True}
"""Step sizes of methods with one lower level per client."""


def oracles(quadratic: Problem) -> Callable[[Tree], Tree]:
    """Full-batch oracle of every client: a function (z of all clients) -> directions of all clients."""
    looker = Derivatives(quadratic.task, Run(FedBiO, quadratic, **STEPS).algorithm.hyper)

    def directions(z: Tree) -> Tree:
        def one(row: Tensor, z: Tree) -> Tree:
            batch = Batch(row[None], torch.zeros(1), torch.ones(1))
            return looker.directions(z, MiniBatch(batch, batch, batch, (batch,)))[0]

        return torch.func.vmap(one)(quadratic.means, z)

    return directions


def far(a: Tree, b: Tree) -> float:
    """Largest absolute difference of two trees."""
    return max(float((p - q).abs().max()) for p, q in zip(leaves(a), leaves(b), strict=True))


EXACT = {"curvature": "hessian", "upper_scale": "paper"}
"""Settings of Comm-FedBiO for the exact hypergradient."""


class Solving:
    """One call of an estimator of Comm-FedBiO.

    v: the server's solution after every step of the solver; e: the residual that was left out; result: the estimate of
    grad_xy g v, or None. sizes: the clients' numbers of samples.
    """

    def __init__(
        self,
        kind: type[Algorithm],
        problem: Problem,
        round: int = 1,
        sizes: np.ndarray | None = None,
        diverging: dict[int, int] | None = None,
        **hyper: Any,
    ):
        run = Run(kind, problem, **{**EXACT, **hyper})
        self.algorithm: Any = run.algorithm
        m, d = len(problem.rows), problem.task.module.y.numel()
        sizes = np.ones(m) if sizes is None else sizes
        self.v, self.e = [torch.zeros(d).double()], [torch.zeros(d).double()]
        self.alphas: list[float] = []
        shares = torch.from_numpy(sizes / sizes.sum())
        run.diverging = diverging or {}
        run.states = {"x": tree_map(lambda leaf: leaf.expand(m, *leaf.shape), run.server["x"])}
        if hasattr(self.algorithm, "schedule"):
            step = self.algorithm.step

            def observed(one: Any, last: Any, b: Tensor) -> Any:
                outcome = yield from step(one, last, b)
                self.v.append(self.algorithm.moved(run.algorithm.hyper, self.v[-1], outcome.change, b, one.alpha))
                self.alphas.append(one.alpha)
                own, weights = run.states["residual"], shares[run.here] / shares[run.here].sum()
                self.e.append(outcome.rest if isinstance(outcome.rest, Tensor) else torch.tensordot(weights, own, 1))
                return outcome

            self.algorithm.step = observed
        cohort = Cohort(round, np.arange(m), sizes, m)
        generator = self.algorithm.crosses(run.server["y"], system(problem, sizes)[1], cohort)
        reply = None
        try:
            while True:
                reply = run.carry_out(generator.send(reply))
        except StopIteration as stop:
            self.found = stop.value
        self.result: Any = None
        if self.found is not None:
            crosses, there = self.found
            fractions = shares[there.clients] / shares[there.clients].sum()
            self.result = torch.tensordot(fractions, crosses["x"], 1)
