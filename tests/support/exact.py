"""Algorithms without the platform, in double precision, for checks that enumerate every possible cohort."""

from dataclasses import dataclass, field, replace
from itertools import combinations, count
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from helpers import QuadraticTask
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange
from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.algorithms.core.task import Params, Task


class DoubleQuadratics(QuadraticTask):
    """L_k(w) = 1/2 (w - c_k)' A_k (w - c_k), started far from every optimum."""

    def init(self) -> Params:
        return {"x": torch.full((self.dimension,), 3.0, dtype=torch.float64)}


class Waves(QuadraticTask):
    """L_k(w) = sum_j .1 (w_j - c_kj)^2 + .8 cos(w_j - e_kj): smooth with L = 1, not convex; a sample is [c_k, e_k]."""

    def init(self) -> Params:
        return {"x": torch.full((self.dimension,), 1.5, dtype=torch.float64)}

    def loss(self, w: Params, batch: Batch) -> Tensor:
        c, e = batch.x[0].split(self.dimension)
        return (0.1 * (w["x"] - c).square() + 0.8 * (w["x"] - e).cos()).sum()


@dataclass
class State:
    """State of a run: the server's tree, and the clients' states and latest models (None before the first)."""

    server: Tree
    clients: list[Tree]
    models: list[np.ndarray | None]
    round: int = 0
    answers: dict[tuple[int, int], tuple[Tree, Tree, Any]] = field(default_factory=dict)
    """(exchange, client) -> message, client state and reply in the next round, shared between cohorts."""

    @property
    def w(self) -> np.ndarray:
        return self.server["w"]["x"].numpy()


class Exact:
    """m clients with one sample each. samples: (m, ...), float64."""

    def __init__(self, kind: type[Algorithm], task: Task, samples: np.ndarray, **hyper: Any):
        self.algorithm = kind(kind.Hyper(**{"batch_size": None, **hyper}), task)
        self.task, self.x, self.m = task, torch.from_numpy(samples), len(samples)

    def start(self) -> State:
        states = [self.algorithm.init_client() for _ in range(self.m)]
        return State(self.algorithm.init_server(), states, [None] * self.m)

    def after(self, state: State, cohort: Any, batched: bool = False) -> State:
        """Run one round with these clients, one by one or all at once; the given state does not change."""
        clients = np.sort(np.asarray(cohort))
        new = replace(state, clients=list(state.clients), models=list(state.models), round=state.round + 1, answers={})
        generator = self.algorithm.round(state.server, Cohort(new.round, clients, np.ones(len(clients)), self.m))
        exchange = next(generator)
        for number in count():
            hits = [k for k in clients if self.is_known(state, number, k, exchange.broadcast)]
            self.answer(state, number, np.setdiff1d(clients, hits), exchange, batched)
            ups = []
            for k in clients:
                up, new.clients[k], _, model = state.answers[number, k][-1]
                new.models[k] = model["x"].numpy()
                ups.append(up)
            mean = tree_map(lambda *parts: torch.stack(parts).mean(0), *ups)
            try:
                exchange = generator.send(Aggregate(mean, np.ones(len(ups), bool), {}))
            except StopIteration as stop:
                new.server = stop.value
                return new
        raise AssertionError

    def is_known(self, state: State, number: int, k: int, down: Tree) -> bool:
        """Whether another cohort already has this reply, to the same message from the same client state."""
        before, own, _ = state.answers.get((number, k), (None, None, None))
        return own is state.clients[k] and all(map(torch.equal, leaves(before), leaves(down)))

    def answer(self, state: State, number: int, clients: np.ndarray, exchange: Exchange, batched: bool) -> None:
        """Fill in the replies of these clients. Newton's method runs one by one, since a single client ends earlier."""
        hyper, data = self.algorithm.hyper.at(state.round + 1), [self.data(k, exchange.batches) for k in clients]
        own = [state.clients[k] for k in clients]
        if not batched or len(clients) < 2 or getattr(hyper, "solver", None) == "newton":
            replies = [exchange.step(hyper, exchange.broadcast, *each) for each in zip(own, data, strict=True)]
        else:

            def one(x: Tensor, state: Tree) -> Any:
                return exchange.step(hyper, exchange.broadcast, state, replace(data[0], x=x, batched=True))

            stacked = tree_map(lambda *parts: torch.stack(parts), *own) if own[0] else {}
            answers = torch.func.vmap(one)(torch.stack([each.x for each in data]), stacked)
            replies = [[tree_map(itemgetter(i), tree) for tree in answers] for i in range(len(clients))]
        for k, before, answer in zip(clients, own, replies, strict=True):
            state.answers[number, k] = exchange.broadcast, before, answer

    def run(self, rounds: int, active: int, seed: int = 0) -> State:
        """Run a number of rounds with random cohorts."""
        state, rng = self.start(), np.random.default_rng(seed)
        for _ in range(rounds):
            state = self.after(state, rng.choice(self.m, active, replace=False), batched=True)
        return state

    def every_cohort(self, state: State, active: int) -> list[State]:
        """States after one round, for each of the equally likely cohorts."""
        return [self.after(state, cohort) for cohort in combinations(range(self.m), active)]

    def data(self, k: int, batches: Any) -> ClientData:
        steps = batches["train"].steps or batches["train"].epochs
        one = torch.zeros((steps, 1), dtype=torch.long), torch.ones((steps, 1), dtype=torch.bool)
        sample = self.x[k : k + 1]
        return ClientData(sample, torch.zeros(1, dtype=torch.long), lambda x: x, {"train": one}, batched=False)

    def loss(self, k: int, w: np.ndarray) -> float:
        return float(self.task.loss({"x": torch.from_numpy(w)}, Batch(self.x[k : k + 1], torch.zeros(1))))

    def gradient(self, k: int, w: np.ndarray) -> np.ndarray:
        x = torch.from_numpy(w).clone().requires_grad_()
        return torch.autograd.grad(self.task.loss({"x": x}, Batch(self.x[k : k + 1], torch.zeros(1))), x)[0].numpy()

    def mean_loss(self, w: np.ndarray) -> float:
        return float(np.mean([self.loss(k, w) for k in range(self.m)]))

    def mean_gradient(self, w: np.ndarray) -> np.ndarray:
        return np.mean([self.gradient(k, w) for k in range(self.m)], axis=0)


def quadratics(m: int = 6, d: int = 4, low: float = 0.2, seed: int = 0) -> tuple[DoubleQuadratics, np.ndarray, Any]:
    """Task, samples and optimum of random quadratics with eigenvalues in [low, 1]."""
    rng = np.random.default_rng(seed)
    basis = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(m)]
    a = np.stack([q @ np.diag(rng.uniform(low, 1, d)) @ q.T for q in basis])
    c = rng.normal(size=(m, d))
    optimum = np.linalg.solve(a.sum(0), np.einsum("kij,kj->i", a, c))
    return DoubleQuadratics(d), np.concatenate([a.reshape(m, -1), c], axis=1), optimum


def waves(m: int = 6, d: int = 4, seed: int = 0) -> tuple[Waves, np.ndarray]:
    rng = np.random.default_rng(seed)
    return Waves(d), np.concatenate([rng.normal(size=(m, d)), rng.normal(size=(m, d)) * 2], axis=1)


class Mean:
    """For a task whose loss uses one sample: the mean over the samples of a batch."""

    def loss(self, w: Params, batch: Batch) -> Tensor:
        one = super().loss  # type: ignore[misc]
        return torch.stack([one(w, Batch(x[None], y[None])) for x, y in zip(batch.x, batch.y, strict=True)]).mean()


class OnlineQuadratics(Mean, DoubleQuadratics):
    """Quadratics started at 0, as in the analysis of MOML."""

    def init(self) -> Params:
        return {"x": torch.zeros(self.dimension, dtype=torch.float64)}


class OnlineWaves(Mean, Waves):
    def init(self) -> Params:
        return {"x": torch.zeros(self.dimension, dtype=torch.float64)}


@dataclass
class Step:
    """A round of a stream: the model that the learner showed, and its state after learning the task."""

    w: np.ndarray
    server: Tree

    def vector(self, name: str) -> np.ndarray:
        return (self.server[name]["x"] if isinstance(self.server[name], dict) else self.server[name]).numpy()


class ExactStream(Exact):
    """Tasks of one sample each, learnt one after the other; every mini-batch has all available samples."""

    def steps(self) -> list[Step]:
        server, steps = self.algorithm.init_server(), []
        for task in range(self.m):
            cohort = Cohort(task + 1, np.array([task]), np.ones(1), self.m)
            generator, reply = self.algorithm.round(server, cohort), None
            model = server["w"]["x"].numpy()
            while True:
                try:
                    exchange = generator.send(reply)
                except StopIteration as stop:
                    server = stop.value
                    break
                data = self.data(task, exchange.batches)
                reply = Aggregate(
                    exchange.step(self.algorithm.hyper, exchange.broadcast, {}, data)[0], np.ones(1, bool), {}
                )
            steps.append(Step(model, server))
        return steps

    def data(self, k: int, batches: Any) -> ClientData:
        spec = batches["train"]
        assert spec.pooled_from is None or len(spec.pooled_from) == 1 or spec.mixed
        rows = torch.tensor([k] if spec.pooled_from is None else list(spec.pooled_from)).repeat(spec.steps or 1, 1)
        streams = {"train": (rows, torch.ones(rows.shape, dtype=torch.bool))}
        return ClientData(self.x, torch.zeros(self.m, dtype=torch.long), lambda x: x, streams, batched=False)


def spheres(centres: Any) -> tuple[OnlineQuadratics, np.ndarray]:
    """F_t(w) = 1/2 ||w - c_t||^2. centres: (T,) or (T, d)."""
    c = np.asarray(centres, dtype=float).reshape(len(centres), -1)
    eye = np.broadcast_to(np.eye(c.shape[1]).reshape(-1), (len(c), c.shape[1] ** 2))
    return OnlineQuadratics(c.shape[1]), np.concatenate([eye, c], axis=1)
