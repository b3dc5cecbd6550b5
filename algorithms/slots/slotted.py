"""An algorithm with filled slots around it.

A proxy drives the inner algorithm's round, changes the exchanges that slots concern, and answers with the finished
aggregate. Neither half of the inner algorithm knows of it.
"""

from collections.abc import Callable, Generator
from copy import copy
from dataclasses import replace
from functools import cached_property
from types import MethodType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Aggregate, Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.keyed_random import subkey
from hedgerow.algorithms.core.messages import MODEL, ClientStep, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import MessageSize, Part, Wire
from hedgerow.algorithms.core.pytree import Tree, add, leaves, sub
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.slots.slots import Slots, SlottedHyper
from hedgerow.algorithms.transforms.transform import Transform

TRANSFORMS = "transforms"
"""In a client's and in the server's state: those of transforms, transform -> step -> part."""

OBJECTIVE = "objective"
"""In a client's state: that of the objective."""

OPTIMIZER = "optimizer"
"""In the server's state: that of the server optimiser."""


class Slotted:
    """An algorithm whose slots are filled. All that is not defined here is the inner algorithm's.

    Its hyperparameters are a SlottedHyper, of which the inner algorithm's steps receive `algorithm` alone.
    """

    def __init__(self, inner: Algorithm, slots: Slots):
        self.inner = inner
        self._hyper = SlottedHyper.of(inner.hyper, slots)
        self._steps: dict[str, ClientStep] = {}
        if slots.objective is not None and slots.objective.incompatibility(inner.task) is None:
            inner.task = slots.objective.task(inner.task)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            # Not set yet: a copy is being made.
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def hyper(self) -> SlottedHyper:
        return self._hyper

    @hyper.setter
    def hyper(self, hyper: SlottedHyper) -> None:
        self._hyper, self.inner.hyper = hyper, hyper.algorithm

    @property
    def task(self) -> Task:
        return self.inner.task

    @task.setter
    def task(self, task: Task) -> None:
        self.inner.task = task

    # ---- what goes together -----------------------------------------------------------------------------------------

    def incompatibility(self) -> str | None:
        """Why the slots do not go with the algorithm or the task, in a sentence; None: they do."""
        inner, hyper = self.inner, self.hyper
        name, aggregation, objective = hyper.name, hyper.aggregation, hyper.objective
        optimizer = aggregation.server_optimizer
        if aggregation.weighting is not None and not (inner.parts or inner.weighting):
            return f"aggregation.weighting: {name} weighs its clients in a way of its own; set it to null"
        if not aggregation.rule.is_mean and not inner.parts:
            return f"aggregation.rule: {name} does not average its clients' answers; set its kind to mean"
        if hyper.transforms and not inner.parts:
            return f"transforms: {name} does not average its clients' answers; remove them"
        if not optimizer.is_plain and (inner.optimizes is None or OPTIMIZER in self._initial):
            return f"aggregation.server_optimizer: {name} has a server step of its own; remove it"
        if optimizer.momentum and inner.refuses_server_momentum:
            return f"aggregation.server_optimizer.momentum: {name} diverges with server momentum; set it to 0"
        if inner.accumulates and aggregation.weighting == "samples":
            return f"aggregation.weighting: the server's memory of {name} weighs clients equally; set it to uniform"
        if inner.accumulates and not aggregation.rule.is_mean:
            return f"aggregation.rule: it would bias the server's memory of {name} for good; set its kind to mean"
        if not aggregation.rule.is_mean and any(part.kind == "opaque" for _, part in self._all_parts()):
            return f"aggregation.rule: {name} sends what only a mean can combine; set its kind to mean"
        for i, transform in enumerate(hyper.transforms):
            if found := self._transform_objection(i, transform):
                return found
        if objective is not None:
            if not inner.training_steps:
                return f"objective: {name} has a loss of its own; remove it"
            if inner.is_centralized and (found := objective.centralized_incompatibility(inner.hyper)):
                return found
            if found := objective.incompatibility(inner.task):
                return found
            if inner.is_centralized and objective.init_client(inner.task):
                return f"objective: {name} has no clients, whose state {objective.kind} keeps; remove it"
        return inner.incompatibility()

    def _transform_objection(self, i: int, transform: Transform) -> str | None:
        name, aggregation = self.hyper.name, self.hyper.aggregation
        remembers = type(self.inner).remember is not Algorithm.remember
        if transform.has_error_feedback and remembers:
            return f"transforms.{i}.error_feedback: clients of {name} have a memory of their own; set it to false"
        if transform.adds_server_noise and self.inner.accumulates:
            return f"transforms.{i}: its noise would add up in the server's memory of {name}; remove it"
        if transform.encodes and i + 1 < len(self.hyper.transforms):
            return f"transforms.{i}: it encodes updates, which nothing after it can read; put it last"
        if transform.encodes and not aggregation.rule.is_mean:
            return f"transforms.{i}: encoded updates can only be averaged; set aggregation.rule to mean"
        if transform.encodes and remembers:
            return f"transforms.{i}: clients of {name} do not know what the server reads of their update; remove it"
        for step, parts in self.inner.parts.items():
            like = self._likes(step)
            wholes = [like] if transform.joint else [like[part] for part in parts if part in like]
            if found := next((found for whole in wholes if (found := transform.incompatibility(whole))), None):
                return f"transforms.{i}.{found}"
        return None

    def _all_parts(self) -> list[tuple[str, Part]]:
        return [named for parts in self.inner.parts.values() for named in parts.items()]

    @cached_property
    def _initial(self) -> Tree:
        return self.inner.init_server()

    def _likes(self, step: str) -> Tree:
        """Trees of the shapes of a step's updates, by part."""
        parts = self.inner.parts[step]
        return {name: self._initial[part.like] for name, part in parts.items() if part.kind != "opaque"}

    def _places(self, transform: Transform, step: str) -> list[tuple[str, Tree]]:
        """Where a transform acts in a step: ("", all parts) if `joint`, else (part, the part) each."""
        like = self._likes(step)
        return [("", like)] if transform.joint else list(like.items())

    def _states(self, initial: Callable[[Transform, Tree], Tree]) -> Tree:
        """The states of all transforms: number -> step -> part -> tree; without empty branches."""
        states: Tree = {}
        for i, transform in enumerate(self.hyper.transforms):
            for step in self.inner.parts:
                for place, like in self._places(transform, step):
                    if state := initial(transform, like):
                        _put(states, (str(i), step, place or "joint"), state)
        return states

    def _inner_state(self, server: Tree) -> Tree:
        """The inner algorithm's part of the server's state."""
        return {
            key: entry for key, entry in server.items() if key in self._initial or key not in (TRANSFORMS, OPTIMIZER)
        }

    # ---- the server's half ------------------------------------------------------------------------------------------

    def init_server(self) -> Tree:
        state = self.inner.init_server()
        transforms = self._states(lambda transform, like: transform.init_server(like))
        optimizer, key = self.hyper.aggregation.server_optimizer, self.inner.optimizes
        memory = {} if optimizer.is_plain or key is None else optimizer.init(state[key])
        return {**state, **_branches({TRANSFORMS: transforms, OPTIMIZER: memory})}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        aggregation, key = self.hyper.aggregation, self.inner.optimizes
        cohort = replace(cohort, weighting=aggregation.weighting)
        transforms = _copied(server.get(TRANSFORMS, {}))
        state = yield from self._drive(self.inner.round(self._inner_state(server), cohort), cohort, transforms)
        memory: Tree = {}
        if not aggregation.server_optimizer.is_plain and key is not None:
            # On the model after the round, never on an aggregate inside it: memories such as FedDyn's h stay right.
            w, memory = aggregation.server_optimizer.step(server[key], state[key], server.get(OPTIMIZER, {}))
            state = self.inner.project({**state, key: w})
        return {**state, **_branches({TRANSFORMS: transforms, OPTIMIZER: memory})}

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        return (yield from self._drive(self.inner.evaluate(self._inner_state(server), cohort), cohort, None))

    def _drive(self, generator: Exchanges, cohort: Cohort, transforms: Tree | None) -> Generator[Any, Any, Any]:
        """Carry out the inner algorithm's exchanges with the slots; what it returns.

        transforms: the server's states of transforms, changed in place; None: exchanges are of an evaluation.
        """
        reply: Any = None
        number = 0
        while True:
            try:
                wanted = generator.send(reply)
            except StopIteration as stop:
                return stop.value
            exchanges = wanted if isinstance(wanted, list) else [wanted]
            covered = [transforms is not None and self._is_covered(exchange) for exchange in exchanges]
            changed = [
                self._changed(e, cohort) if c else self._bound(e) for e, c in zip(exchanges, covered, strict=True)
            ]
            results = yield changed if isinstance(wanted, list) else changed[0]
            results = results if isinstance(wanted, list) else [results]
            for i, exchange in enumerate(exchanges):
                if covered[i] and self._rewrites(exchange.step.__name__) and results[i].contributed.any():
                    finish = self._finished(changed[i], results[i], transforms or {}, cohort, number + i)
                    results[i] = replace(results[i], up=finish)
            reply = results if isinstance(wanted, list) else results[0]
            number += len(exchanges)

    def _is_covered(self, exchange: Exchange) -> bool:
        return exchange.on == "clients" and exchange.step.__name__ in self.inner.parts

    def _rewrites(self, step: str) -> bool:
        """Whether a step's updates are sent in place of its answer."""
        changes = bool(self.hyper.transforms) or not self.hyper.aggregation.rule.is_mean
        return changes and step in self.inner.parts and bool(self._likes(step))

    def _bound(self, exchange: Exchange) -> Exchange:
        """The exchange with the step as the slots wrap it."""
        name = exchange.step.__name__
        objective = self.hyper.objective
        batches = exchange.batches
        if objective is not None and name in self.inner.training_steps:
            batches = objective.batches(batches)
        return replace(exchange, step=self.client_step(name), batches=batches)

    def _changed(self, exchange: Exchange, cohort: Cohort) -> Exchange:
        """The exchange as the slots want it."""
        name, hyper = exchange.step.__name__, self.hyper
        weights = exchange.weights
        if hyper.aggregation.weighting == "uniform":
            weights = None
        elif hyper.aggregation.weighting == "samples" and weights is None:
            weights = cohort.sizes[np.searchsorted(cohort.clients, exchange.clients)]
        changed = replace(self._bound(exchange), weights=weights)
        if not self._rewrites(name):
            return changed
        if exchange.reduce != "mean":
            raise ValueError(f"parts: the exchange of {name!r} is reduced by {exchange.reduce}; parts are of means")
        rule = hyper.aggregation.rule
        if not rule.is_mean:
            changed = replace(changed, reduce="stack")
        if hyper.transforms:
            keyed = any(transform.is_random for transform in hyper.transforms)
            changed = replace(changed, keyed=keyed, wire=self._message_size(name))
        return changed

    def _message_size(self, step: str) -> MessageSize:
        """What each client sends in a step."""
        wires = {name: Wire.of(self._initial[part.like]) for name, part in self.inner.parts[step].items()}
        for transform in self.hyper.transforms:
            for name in list(self._likes(step))[: 1 if transform.joint else None]:
                wires[name] = transform.wire(wires[name])
        return MessageSize(sum(wire.scalars for wire in wires.values()), sum(wire.bits for wire in wires.values()))

    def _finished(self, exchange: Exchange, result: Aggregate, transforms: Tree, cohort: Cohort, number: int) -> Tree:
        """The aggregate as the inner algorithm expects it, of the updates that were reduced."""
        step, rule = exchange.step.__name__, self.hyper.aggregation.rule
        likes = self._likes(step)
        update = {name: result.up[name] for name in likes}
        if not rule.is_mean:
            weights = np.ones(len(exchange.clients)) if exchange.weights is None else exchange.weights
            update = rule.combine(update, torch.from_numpy(np.asarray(weights, np.float64)[result.contributed]))
        for i, transform in reversed(list(enumerate(self.hyper.transforms))):
            for place, like in self._places(transform, step):
                seed = cohort.seed_for(f"transform {i} {step} {place} {number}")
                path = (str(i), step, place or "joint")
                given = update if transform.joint else update[place]
                received, state = transform.server(
                    given, _get(transforms, path), like, seed, int(result.contributed.sum())
                )
                update = received if transform.joint else {**update, place: received}
                if state:
                    _put(transforms, path, state)
        values = {
            name: add(exchange.broadcast[part.like], update[name]) if part.kind == "value" else update[name]
            for name, part in self.inner.parts[step].items()
            if name in update
        }
        return self.inner.project({**result.up, **values})

    def evaluate_params(self, server: Tree) -> Tree:
        w = self.inner.evaluate_params(self._inner_state(server))
        return w if self.hyper.objective is None else self.hyper.objective.reported(w)

    # ---- the clients' half ------------------------------------------------------------------------------------------

    def init_client(self) -> Tree:
        objective = self.hyper.objective
        own = {} if objective is None else objective.init_client(self.task)
        transforms = self._states(lambda transform, like: transform.init_client(like))
        return {**self.inner.init_client(), **_branches({OBJECTIVE: own, TRANSFORMS: transforms})}

    def client_step(self, name: str) -> ClientStep:
        """The inner algorithm's step of that name, with the slots around it, under the same name."""
        if name not in self._steps:
            self._steps[name] = MethodType(_wrapped(name), self)
        return self._steps[name]

    def _step(self, name: str, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        objective = self.hyper.objective if name in self.inner.training_steps else None
        mine = {key: state[key] for key in (OBJECTIVE, TRANSFORMS) if key in state}
        own = {key: entry for key, entry in state.items() if key not in mine}
        inner, context = self.inner, None
        if objective is not None:
            loss, context = objective.begin(self.task, hp, down, mine.get(OBJECTIVE, {}), data)
            inner = copy(inner)
            inner.task = inner.task.with_loss(loss)
        up, new, metrics = getattr(inner, name)(hp.algorithm, down, own, data)
        if objective is not None and MODEL in metrics:
            lasting, said = objective.end(self.task, hp, metrics[MODEL], mine.get(OBJECTIVE, {}), context, data)
            mine, metrics = {**mine, **_branches({OBJECTIVE: lasting})}, {**metrics, **said}
        if self._rewrites(name):
            up, new, transforms = self._sent(name, hp, down, own, (up, new), mine.get(TRANSFORMS, {}), data)
            mine |= _branches({TRANSFORMS: transforms})
        return up, {**new, **mine}, metrics

    def _sent(
        self, step: str, hp: Any, down: Tree, state: Tree, answer: tuple[Tree, Tree], states: Tree, data: ClientData
    ) -> tuple[Tree, Tree, Tree]:
        """A client's updates after all transforms, its new state, and its states of transforms.

        state: before the step. answer: what the step returned, and its new state.
        """
        up, new = answer
        parts, transforms = self.inner.parts[step], self.hyper.transforms
        if missing := next((name for name in up if name not in parts), None):
            raise ValueError(f"parts: {step!r} answers with {missing!r}, which is not declared; add it")
        covered = {name: part for name, part in parts.items() if part.kind != "opaque" and name in up}
        update = {
            name: sub(up[name], down[part.like]) if part.kind == "value" else up[name] for name, part in covered.items()
        }
        if not transforms:
            return {**up, **update}, new, states
        diverged = ~torch.stack([leaf.sum() for leaf in leaves(update)]).sum().isfinite()
        states = _copied(states)
        sent = update
        for i, transform in enumerate(transforms):
            places = [""] if transform.joint else list(update)
            for place in places:
                path, given = (str(i), step, place or "joint"), update if transform.joint else update[place]
                key = None
                if transform.is_random:
                    assert data.key is not None
                    key = subkey(data.key, crc32(f"{i} {place}".encode()))
                out, lasting = transform.client(hp.transforms[i], given, _get(states, path), key)
                update = out if transform.joint else {**update, place: out}
                if lasting:
                    _put(states, path, lasting)
            if not transform.encodes:
                sent = update
        values = {
            name: add(down[part.like], sent[name]) if part.kind == "value" else sent[name]
            for name, part in covered.items()
        }
        new = {**new, **self.inner.remember(hp.algorithm, down, values, state)}
        return {**up, **_marked(update, diverged)}, new, states


def _wrapped(name: str) -> Callable[..., Any]:
    """A function that carries the name of an inner step."""

    def step(self: Slotted, hp: Any, down: Tree, state: Tree, data: ClientData) -> Any:
        return self._step(name, hp, down, state, data)

    step.__name__ = name
    return step


def _marked(update: Tree, diverged: Tensor) -> Tree:
    """The update with NaN in one leaf where the client diverged: a transform may have hidden that from the server."""
    first = next(iter(update))
    if not isinstance(update[first], dict):
        return {**update, first: torch.where(diverged, torch.nan, update[first])}
    return {**update, first: _marked(update[first], diverged)}


def _branches(tree: Tree) -> Tree:
    """Without empty branches, which checkpoints do not keep."""
    return {key: branch for key, branch in tree.items() if branch}


def _copied(tree: Tree) -> Tree:
    """A tree of the same leaves whose branches may be changed."""
    return {key: _copied(child) if isinstance(child, dict) else child for key, child in tree.items()}


def _get(tree: Tree, path: tuple[str, ...]) -> Tree:
    for key in path:
        tree = tree.get(key, {})
    return tree


def _put(tree: Tree, path: tuple[str, ...], branch: Tree) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = branch
