"""Bilevel algorithms without the platform, in double precision, on the quadratic problem."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.base import Algorithm, Batches, ClientData, Cohort, Exchange, Result
from hedgerow.algorithms.problems import Quadratic, QuadraticModel
from hedgerow.algorithms.trees import Tree, tree_map
from hedgerow.platform.data.quadratic import generate
from hedgerow.platform.data.sources import QuadraticData


@dataclass
class Problem:
    """The toy of the checks. rows (m, samples, features): each client's samples, for training and validation alike."""

    task: Quadratic
    rows: Tensor

    @property
    def means(self) -> Tensor:
        return self.rows.mean(1)

    def best(self, local: bool = False) -> dict[str, Tensor]:
        return self.task.solution(local=local)


def problem(**settings: Any) -> Problem:
    """heterogeneity, noise, ... as in the experiment file."""
    config = QuadraticData(**settings)
    x = torch.from_numpy(generate(config).x_train).double().reshape(config.clients, config.samples, -1)
    module = QuadraticModel(config.upper, config.lower).double()
    return Problem(Quadratic(module, clients=x.mean(1)), x)


def quadratic(hessians: Any, couplings: Any, outer: Any, e: Any, upper: Any) -> Problem:
    """Clients with g_m = 1/2 y'A_m y - y'B_m x, and f = 1/2 y'D y - e'y + 1/2 x'P x in common.

    hessians: A (m, d, d); couplings: B (m, d, p); outer: D; upper: P.
    """
    m, d, p = couplings.shape
    common = (np.zeros(d), outer, e, upper, np.zeros(p))
    rows = np.stack([np.concatenate([np.ravel(a) for a in (hessians[i], couplings[i], *common)]) for i in range(m)])
    x = torch.from_numpy(rows)[:, None]
    return Problem(Quadratic(QuadraticModel(p, d).double(), clients=x[:, 0]), x)


def linear(hessians: Any, b: Any) -> Problem:
    """H is the mean of `hessians` (m, d, d), grad_y f = b, and grad_xy g v = v."""
    m, d, _ = hessians.shape
    return quadratic(hessians, np.broadcast_to(-np.eye(d), (m, d, d)), np.zeros((d, d)), -b, np.zeros((d, d)))


def spectrum(d: int, low: float, high: float, seed: int, clients: int = 1, spread: float = 0.0) -> np.ndarray:
    """(clients, d, d) with eigenvalues of the mean evenly from low to high; clients differ by symmetric noise."""
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(d, d)))[0]
    mean = (q * np.linspace(low, high, d)) @ q.T
    noise = rng.normal(size=(clients, d, d)) * spread / np.sqrt(d)
    noise = noise + noise.transpose(0, 2, 1)
    return mean + noise - noise.mean(0)


def system(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """H, b, and the solution of H v = b."""
    mean = problem.task._coefficients(problem.means.mean(0))
    return mean.A, -mean.e, torch.linalg.solve(mean.A, -mean.e)


def relative(v: Tensor, problem: Problem) -> float:
    """The relative error of a solution."""
    best = system(problem)[-1]
    return float((v - best).norm() / best.norm())


class Run:
    """Rounds of an algorithm with all clients, who work at once. server: its state; states: theirs, stacked."""

    def __init__(self, kind: type[Algorithm], problem: Problem, seed: int = 0, **hyper: Any):
        defaults = {"ridge": 0.0, "batch_size": None}
        values = {name: value for name, value in defaults.items() if name in kind.Hyper.model_fields} | hyper
        self.algorithm = kind(kind.Hyper(**values), problem.task)
        self.problem, self.m = problem, len(problem.rows)
        self.rng = np.random.default_rng(seed)
        self.server = self.algorithm.init_server()
        self.states = tree_map(lambda leaf: leaf.expand(self.m, *leaf.shape), self.algorithm.init_client())
        self.lasting = set(self.states)
        self.round = self.exchanges = 0
        self.spent: dict[str, float] = {}

    def rounds(self, number: int) -> "Run":
        for _ in range(number):
            self.round += 1
            everybody = np.arange(self.m)
            generator = self.algorithm.round(self.server, Cohort(self.round, everybody, np.ones(self.m), self.m))
            reply: Any = None
            while reply is not self:
                try:
                    reply = self._carry_out(generator.send(reply))
                except StopIteration as stop:
                    self.server, reply = stop.value, self
            # What a step noted for the round alone is gone.
            self.states = {name: tree for name, tree in self.states.items() if name in self.lasting}
        return self

    def distance(self, name: str = "x", local: bool = False) -> float:
        """Of a variable of the server's to the solution."""
        return float((self.server[name]["x" if name == "x" else "y"] - self.problem.best(local)[name]).norm())

    def hypergradient(self) -> float:
        """||grad h||^2 at the server's x."""
        return float(self.problem.task.hypergradient(self.server["x"]["x"]).square().sum())

    def _carry_out(self, exchange: Exchange) -> Result:
        pooled = exchange.on == "pool"
        self.exchanges += not pooled
        rows = self.problem.rows.flatten(0, 1)[None] if pooled else self.problem.rows
        hp = self.algorithm.hyper.at(self.round)
        # What single precision suffices for on the platform.
        down = tree_map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, exchange.received)
        everyone = torch.arange(len(rows)), {} if pooled else self.states, rows, self.streams(rows, exchange.batches)

        def one(_: Tensor, state: Tree, rows: Tensor, streams: Any) -> Any:
            labels = torch.zeros(len(rows), dtype=torch.long)
            return exchange.step(hp, down, state, ClientData(rows, labels, lambda x: x, streams, batched=True))

        up, state, metrics = torch.func.vmap(one)(*everyone)
        if not pooled:
            self.states = state
        for name, values in metrics.items():
            self.spent[name] = self.spent.get(name, 0.0) + float(values.sum())
        up = up if exchange.reduce == "stack" else tree_map(lambda leaf: leaf.mean(0), up)
        return Result(up, np.ones(len(rows), bool), {})

    def streams(self, rows: Tensor, batches: Mapping[str, Batches]) -> dict[str, tuple[Tensor, Tensor]]:
        """Mini-batches drawn independently, with replacement; or all samples, in order."""
        found = {}
        m, n = rows.shape[:2]
        for name, spec in batches.items():
            steps, size = 1 if spec.steps is None else spec.steps, min(spec.size or n, n)
            shape = (m, steps, size)
            drawn = np.broadcast_to(np.arange(n), shape) if size == n else self.rng.integers(0, n, shape)
            found[name] = torch.tensor(drawn), torch.ones(shape, dtype=torch.bool)
        return found


EXACT = {"curvature": "hessian", "upper_scale": "paper"}
"""Of Comm-FedBiO: the hypergradient as it is."""


class Solving:
    """One call of an estimator of Comm-FedBiO. v: of every step of the solver, as the server has it; e: what was left
    out; result: what it estimates for grad_xy g v, or None."""

    def __init__(self, kind: type[Algorithm], problem: Problem, round: int = 1, **hyper: Any):
        run = Run(kind, problem, **EXACT, **hyper)
        algorithm, d = run.algorithm, problem.task.module.y.numel()
        self.v, self.e = [torch.zeros(d).double()], [torch.zeros(d).double()]
        self.alphas: list[float] = []
        if hasattr(algorithm, "schedule"):
            step = algorithm.step

            def observed(one: Any, last: Any, v: Tensor, b: Tensor, cohort: Cohort) -> Any:
                found = yield from step(one, last, v, b, cohort)
                self.alphas.append(one.alpha)
                self.v.append(algorithm._moved(algorithm.hyper, v, found.change, b, one.alpha))
                self.e.append(found.rest if isinstance(found.rest, torch.Tensor) else run.states["residual"].mean(0))
                return found

            algorithm.step = observed
        m = len(problem.rows)
        cohort = Cohort(round, np.arange(m), np.ones(m), m)
        generator = algorithm.crosses(run.server, system(problem)[1], cohort)
        reply = None
        try:
            while True:
                reply = run._carry_out(generator.send(reply))
        except StopIteration as stop:
            self.result = None if stop.value is None else stop.value.up["cross"]["x"].mean(0)
