"""Inference of what a class of algorithms would otherwise declare: one round on a tiny task shows it."""

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange, StepResult
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree, shapes_of, stack, tree_map
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.core.torch_private import HAS_VMAP_LEVELS, without_transforms

SAMPLES, STEPS = 4, 2
"""Number of samples and maximum number of mini-batches of each client."""


@dataclass(frozen=True)
class Inference:
    """Findings of one round of an algorithm; empty if the round fails, or needs another task."""

    parts: Parts = field(default_factory=dict)
    training_steps: tuple[str, ...] = ()
    single_exchange: bool = False
    client_floats: tuple[str, ...] = ()
    """Floats of `Hyper` that client steps read, and the server does not."""
    doubt: str = ""
    """Why there are no `parts`; "" if there are."""


def infer(kind: type, hyper: Any) -> Inference:
    """Runs round 1 of an algorithm for two clients: a model of two linear layers, two features, two classes."""
    doubt, threads = "", torch.get_num_threads()
    # Hyperparameters may name layers of the experiment's model, which the tiny task does not have.
    for values in (hyper, type(hyper).model_construct()):
        # Several threads only wait for each other on so little work.
        torch.set_num_threads(1)
        try:
            # A step under torch.func.vmap may be the first to ask.
            outside = without_transforms() if HAS_VMAP_LEVELS else nullcontext()
            with outside, torch.enable_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return _Round(kind, values).inference()
        except Exception as error:
            doubt = doubt or f"a round on a tiny task fails ({type(error).__name__}: {error})"
        finally:
            torch.set_num_threads(threads)
    return Inference(doubt=doubt)


def shorter(batches: Mapping[str, BatchSpec], steps: int, samples: int) -> dict[str, BatchSpec]:
    """Same streams with few mini-batches, but never more than a step may expect from its clients' sizes."""
    limits = [spec.steps for spec in batches.values() if spec.steps]
    # If a step takes several mini-batches of a stream at a time, that stream is longer in proportion.
    share = min(1.0, steps / min(limits, default=steps))
    result = {}
    for name, spec in batches.items():
        size = min(spec.size or samples, samples)
        passes = spec.epochs * -(-samples // size)
        most = ceil(spec.steps * share) if spec.steps else steps if passes > steps else None
        result[name] = replace(spec, size=size, steps=most)
    return result


class _Read:
    """Hyperparameters that note which of them are read."""

    def __init__(self, hyper: Any, names: set[str]):
        self._hyper, self._names = hyper, names

    def __getattr__(self, name: str) -> Any:
        self._names.add(name)
        return getattr(self._hyper, name)

    def __iter__(self) -> Any:
        return iter(self._hyper)

    def at(self, round: int) -> "_Read":
        return _Read(self._hyper.at(round), self._names)


class _Metrics(dict[str, Any]):
    """Metrics of an Aggregate that note whether the server reads them."""

    read = False

    def __getitem__(self, name: str) -> Any:
        self.read = True
        return super().__getitem__(name)


class _Round:
    """The round, and what was seen in it."""

    def __init__(self, kind: type, hyper: Any):
        self.server_reads, self.client_reads = set[str](), set[str]()
        self.hyper = hyper
        self.losses = 0
        self.algorithm = kind(_Read(hyper, self.server_reads), self.task())
        self.initial: Tree = self.algorithm.init_server()
        self.states: dict[int, Tree] = {}
        self.requests: list[list[Exchange]] = []
        self.answers: list[tuple[Exchange, StepResult, bool]] = []
        """For each client step: its exchange, its result, and whether it called the loss of the task."""
        self.metrics: list[_Metrics] = []
        self.cohort = Cohort(
            1, np.arange(2), np.array([SAMPLES, SAMPLES - 1]), 2, 1, population_sizes=np.array([SAMPLES, SAMPLES - 1])
        )

    def task(self) -> Task:
        module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        plain = Task(
            module, torch.zeros(2), torch.ones(2), lambda seed: module, sample_shape=(2,), teacher=deepcopy(module)
        )

        def loss(w: Params, batch: Batch) -> Tensor:
            self.losses += 1
            return plain.loss(w, batch)

        return plain.with_loss(loss)

    def inference(self) -> Inference:
        generator, reply = self.algorithm.round(self.initial, self.cohort), None
        while True:
            try:
                request = generator.send(reply)
            except StopIteration:
                break
            self.requests.append(request if isinstance(request, list) else [request])
            aggregates = [self.aggregate(exchange) for exchange in self.requests[-1]]
            reply = aggregates if isinstance(request, list) else aggregates[0]
        own = self.client_reads - self.server_reads
        floats = tuple(name for name, value in self.hyper if isinstance(value, float) and name in own)
        is_single = self.is_single()
        parts, doubt = self.parts() if is_single else ({}, "a round is not one exchange with all clients and a mean")
        return Inference(parts, self.training_steps(), is_single, floats, doubt)

    def parts(self) -> tuple[Parts, str]:
        """Parts of the only exchange, see `Algorithm.parts`, or why there are none."""
        exchange, result, _ = self.answers[0]
        known, update = {name: shapes_of(tree) for name, tree in self.initial.items()}, result.update
        received = {name: shapes for name, shapes in known.items() if shapes_of(exchange.broadcast.get(name)) == shapes}
        parts = {}
        for name, shapes in ((name, shapes_of(tree)) for name, tree in update.items()):
            likes = [other for other, own in received.items() if own == shapes and other not in update]
            if received.get(name) == shapes:
                parts[name] = Part(name, "value")
            elif len(likes) == 1:
                parts[name] = Part(likes[0], "difference")
            elif known.get(name) == shapes and name not in exchange.broadcast:
                parts[name] = Part(name, "opaque")
            else:
                return {}, f"clients send {name!r}, which resembles no single entry that they receive"
        if all(part.kind == "opaque" for part in parts.values()):
            return {}, "clients send nothing that resembles an entry that they receive"
        return {exchange.step.__name__: parts}, ""

    def training_steps(self) -> tuple[str, ...]:
        """Steps that call the loss of the task and return the client's model."""
        steps = [exchange.step.__name__ for exchange, result, calls in self.answers if calls and result.model]
        return tuple(dict.fromkeys(steps))

    def is_single(self) -> bool:
        """Whether the round is one exchange with all clients whose metrics the server does not read."""
        exchanges = [exchange for request in self.requests for exchange in request]
        if len(exchanges) != 1 or any(metrics.read for metrics in self.metrics):
            return False
        (one,) = exchanges
        has_all = one.site == "clients" and np.array_equal(one.clients, self.cohort.clients)
        return has_all and one.reduce == "mean" and not (one.per_client or one.weighted_by)

    def aggregate(self, exchange: Exchange) -> Aggregate:
        results = [self.result(exchange, i, int(client)) for i, client in enumerate(exchange.clients)]
        if not results:
            return Aggregate({}, np.zeros(0, bool), {})
        up = stack(*(result.update for result in results))
        if exchange.reduce != "stack":
            up = tree_map(lambda leaf: leaf.float().sum(0) / (len(results) if exchange.reduce == "mean" else 1), up)
        metrics = {name: [float(result.metrics[name]) for result in results] for name in results[0].metrics}
        self.metrics.append(_Metrics({name: np.array(values) for name, values in metrics.items()}))
        return Aggregate(up, np.ones(len(results), bool), self.metrics[-1])

    def result(self, exchange: Exchange, i: int, client: int) -> StepResult:
        own = tree_map(lambda leaf: leaf[i], exchange.received_per_client)
        state = self.states.get(client) or self.algorithm.init_client()
        before = self.losses
        hyper = _Read(self.hyper.at(1), self.client_reads)
        answer = exchange.step(hyper, {**exchange.received, **own}, state, self.data(exchange))  # type: ignore[arg-type]
        result = StepResult.of(answer)
        result = result._replace(update=tree_map(Tensor.detach, result.update))
        self.answers.append((exchange, result, self.losses > before))
        self.states[client] = tree_map(Tensor.detach, result.state)
        return result

    def data(self, exchange: Exchange) -> ClientData:
        x, y = torch.arange(2.0 * SAMPLES).view(SAMPLES, 2) / SAMPLES, torch.arange(SAMPLES) % 2
        streams, keys = {}, {}
        for name, spec in shorter(exchange.batches, STEPS, SAMPLES).items():
            size, steps = spec.size or SAMPLES, spec.steps or spec.epochs
            rows = torch.arange(steps * size).view(steps, size) % SAMPLES
            streams[name] = rows, torch.ones_like(rows, dtype=torch.bool)
            if spec.views > 1:
                keys[name] = torch.ones((steps, spec.views), dtype=torch.int64)
        key = torch.ones(2, dtype=torch.int64) if exchange.keyed else None
        return ClientData(x, y, self.algorithm.task.prepare, streams, False, keys, key=key)
