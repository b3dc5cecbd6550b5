"""An algorithm with filled slots around it.

A proxy drives the round of the inner algorithm, modifies the exchanges that slots apply to, and returns the finished
aggregate. The inner algorithm, server and client part, is not aware of the slots.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from types import MethodType
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.attacks.attack import attackers
from hedgerow.algorithms.core.algorithm import Aggregate, Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.keyed_random import subkey
from hedgerow.algorithms.core.layer_context import evaluation_mode
from hedgerow.algorithms.core.messages import MODEL, ClientStep, Cohort, Exchange, Exchanges, ExchangeSteps, drive
from hedgerow.algorithms.core.parts import ContractError, MessageSize, Wire
from hedgerow.algorithms.core.pytree import Tree, add, leaves, sub, tree_map, zeros_like
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.slots.slot_compatibility import (
    OPTIMIZER,
    changes_updates,
    clip_before,
    covered,
    slots_objection,
    weighting_of,
)
from hedgerow.algorithms.slots.slots import Slots, SlottedHyper
from hedgerow.algorithms.transforms.transform import Transform

TRANSFORMS = "transforms"
"""Key of client and server state that holds the states of transforms: transform -> step -> part."""

OBJECTIVE = "objective"
"""Key of client state that holds the state of the objective."""

ATTACKS = "@attacks"
"""Input of a client step: whether the client attacks."""

RECEIVED = "@transforms"
"""Input of a client step: entries of the server states of the transforms that clients receive."""

REPORTS = "@reports"
"""Entry of a client step's result: what the client parts of transforms report."""

AS_IS = "@as_is"
"""Suffix of the name of a step in exchanges without aggregation rule and transforms, such as those of an evaluation."""


class Slotted:
    """An algorithm with filled slots. Attributes that are not defined here are those of the inner algorithm.

    The hyperparameters are a SlottedHyper; steps of the inner algorithm receive only its `algorithm`.
    classes: number of classes of the task, for attacks that flip labels.
    """

    def __init__(self, inner: Algorithm, slots: Slots, classes: int | None = None):
        self.inner, self.classes = inner, classes
        self._hyper = SlottedHyper.of(inner.hyper, slots)
        self._steps: dict[str, ClientStep] = {}
        if slots.objective is not None and slots.objective.incompatibility(inner.task) is None:
            inner.task = slots.objective.task(inner.task)

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            # `copy` creates the object before it sets `inner`.
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

    def incompatibility(self) -> str | None:
        """Returns one sentence on why the slots do not fit the algorithm or the task; None if they do."""
        return slots_objection(self.inner, self.hyper, self._initial)

    @cached_property
    def _initial(self) -> Tree:
        return self.inner.init_server()

    def _likes(self, step: str) -> Tree:
        return covered(self.inner, step, self._initial)

    def _places(self, transform: Transform, step: str) -> list[tuple[str, Tree]]:
        """Returns where a transform acts in a step: ("", all parts) if `joint`, else (name, part) for each part."""
        like = self._likes(step)
        return [("", like)] if transform.joint else list(like.items())

    def _states(self, initial: Callable[[Transform, Tree], Tree]) -> Tree:
        """Returns the states of all transforms: number -> step -> part -> tree; without empty branches."""
        states: Tree = {}
        for i, transform in enumerate(self.hyper.transforms):
            for step in self.inner.parts:
                for place, like in self._places(transform, step):
                    if state := initial(transform, like):
                        _put(states, (str(i), step, place or "joint"), state)
        return states

    def _inner_state(self, server: Tree) -> Tree:
        """Returns the inner algorithm's entries of the server state."""
        return {
            key: entry for key, entry in server.items() if key in self._initial or key not in (TRANSFORMS, OPTIMIZER)
        }

    # ---- server part -------------------------------------------------------------------------------------------------

    def init_server(self) -> Tree:
        state = self.inner.init_server()
        transforms = self._states(lambda transform, like: transform.init_server(like))
        optimizer, key = self.hyper.aggregation.server_optimizer, self.inner.optimizes
        memory = {} if optimizer.is_plain or key is None else optimizer.init(state[key])
        return {**state, **_branches({TRANSFORMS: transforms, OPTIMIZER: memory})}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        aggregation, key = self.hyper.aggregation, self.inner.optimizes
        cohort = replace(cohort, weighting=weighting_of(self.inner, self.hyper))
        transforms = _copied(server.get(TRANSFORMS, {}))
        state = yield from self._drive(self.inner.round(self._inner_state(server), cohort), cohort, transforms)
        memory: Tree = {}
        if not aggregation.server_optimizer.is_plain and key is not None:
            # Applied to the model after the round, not to an aggregate inside it, so that FedDyn's h stays valid.
            w, memory = aggregation.server_optimizer.step(server[key], state[key], server.get(OPTIMIZER, {}))
            state = self.inner.project({**state, key: w})
        return {**state, **_branches({TRANSFORMS: transforms, OPTIMIZER: memory})}

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        return (yield from self._drive(self.inner.evaluate(self._inner_state(server), cohort), cohort, None))

    def _drive(self, generator: Exchanges, cohort: Cohort, transforms: Tree | None) -> ExchangeSteps:
        """Runs the exchanges of the inner algorithm with the slots; returns the return value of its generator.

        transforms: server states of the transforms, changed in place; None: the exchanges belong to an evaluation.
        """

        def run(exchanges: list[Exchange], number: int) -> ExchangeSteps:
            mask = [
                transforms is not None and e.on == "clients" and e.step.__name__ in self.inner.parts for e in exchanges
            ]
            replacements = [
                self._changed(e, cohort, transforms or {}) if c else self._bound(e, AS_IS)
                for e, c in zip(exchanges, mask, strict=True)
            ]
            results = list((yield replacements))
            for i, exchange in enumerate(exchanges):
                if not (mask[i] and self._rewrites(exchange.step.__name__)):
                    continue
                if results[i].contributed.any() or self._expected is not None:
                    aggregate = self._finished(replacements[i], results[i], transforms or {}, cohort, number + i)
                    results[i] = replace(results[i], up=aggregate, expected=self._expected)
            return results

        return (yield from drive(generator, run))

    @property
    def _expected(self) -> float | None:
        """Expected number of clients, by which a noisy sum is divided; None: it is divided by their actual number."""
        expected = [transform.expected_clients for transform in self.hyper.transforms if transform.adds_server_noise]
        return next((number for number in expected if number is not None), None)

    @property
    def _stacks(self) -> bool:
        """Whether the server needs every update of a round."""
        attack = self.hyper.attack
        return not self.hyper.aggregation.rule.is_mean or (attack is not None and attack.colludes)

    def _attack_mask(self, clients: np.ndarray, cohort: Cohort) -> np.ndarray:
        """Which of the clients attack."""
        assert self.hyper.attack is not None
        return attackers(cohort.seed, cohort.population, self.hyper.attack.fraction)[clients]

    def _rewrites(self, step: str) -> bool:
        """Whether a step sends its changed updates instead of its own result."""
        return changes_updates(self.hyper) and step in self.inner.parts and bool(self._likes(step))

    def _bound(self, exchange: Exchange, suffix: str = "") -> Exchange:
        """Returns the exchange with the step wrapped by the slots. suffix: `AS_IS` if the step sends its own result."""
        name = exchange.step.__name__
        objective = self.hyper.objective
        batches = exchange.batches
        if objective is not None and name in self.inner.training_steps:
            batches = objective.batches(batches)
        suffix = suffix if self._rewrites(name) else ""
        return replace(exchange, step=self.client_step(name + suffix), batches=batches)

    def _changed(self, exchange: Exchange, cohort: Cohort, states: Tree) -> Exchange:
        """Returns the exchange with the weights, reduction and randomness that the slots require."""
        name, hyper = exchange.step.__name__, self.hyper
        weights, weighted_by = exchange.weights, exchange.weighted_by
        if hyper.aggregation.weighting is not None:
            weights, weighted_by = self.inner.weights(cohort), None
            if weights is not None:
                weights = weights[np.searchsorted(cohort.clients, exchange.clients)]
        replacement = replace(self._bound(exchange), weights=weights, weighted_by=weighted_by)
        if not self._rewrites(name):
            return replacement
        if exchange.reduce != "mean":
            raise ContractError(
                f"the exchange of `{name}` has reduce={exchange.reduce!r}, but `parts` names this step; set it to "
                "'mean', or remove the step from `parts`"
            )
        rule = hyper.aggregation.rule
        if not rule.uses_weights and (weights is not None or weighted_by):
            raise ContractError(
                f"the exchange of `{name}` weights clients, but {rule.kind} treats them equally; set "
                "aggregation.weighting to uniform"
            )
        if (weights is not None or weighted_by) and any(transform.adds_server_noise for transform in hyper.transforms):
            raise ContractError(
                f"the exchange of `{name}` weights clients, but the noise is that of an unweighted mean; set "
                "aggregation.weighting to uniform"
            )
        if received := self._received(name, states):
            replacement = replace(replacement, broadcast={**exchange.broadcast, RECEIVED: received})
        if self._stacks:
            replacement = replace(replacement, reduce="stack")
        if hyper.transforms:
            keyed = exchange.keyed or any(transform.is_random for transform in hyper.transforms)
            replacement = replace(replacement, keyed=keyed, wire=self._message_size(name))
        if hyper.attack is not None:
            mask = {ATTACKS: torch.from_numpy(self._attack_mask(exchange.clients, cohort))}
            replacement = replace(
                replacement,
                keyed=replacement.keyed or hyper.attack.is_random,
                local_inputs_per_client={**exchange.local_inputs_per_client, **mask},
            )
        return replacement

    def _message_size(self, step: str) -> MessageSize:
        """Size of each client's message in a step."""
        wires = {name: Wire.of(self._initial[part.like]) for name, part in self.inner.parts[step].items()}
        for transform in self.hyper.transforms:
            for name in list(self._likes(step))[: 1 if transform.joint else None]:
                wires[name] = transform.wire(wires[name])
        bits = sum(len(transform.reports) * len(self._places(transform, step)) for transform in self.hyper.transforms)
        return MessageSize(
            sum(wire.scalars for wire in wires.values()) + bits, sum(wire.bits for wire in wires.values()) + bits
        )

    def _received(self, step: str, states: Tree) -> Tree:
        """Entries of the server states of the transforms that clients receive: number -> part -> tree."""
        received: Tree = {}
        for i, transform in enumerate(self.hyper.transforms):
            for place, _ in self._places(transform, step) if transform.receives else ():
                state = _get(states, (str(i), step, place or "joint"))
                _put(received, (str(i), place or "joint"), {key: state[key] for key in transform.receives})
        return received

    def _finished(self, exchange: Exchange, result: Aggregate, transforms: Tree, cohort: Cohort, number: int) -> Tree:
        """Converts the reduced updates to the aggregate that the inner algorithm expects."""
        step, rule, attack = exchange.step.__name__, self.hyper.aggregation.rule, self.hyper.attack
        likes = self._likes(step)
        # Without any client, the sum of a noisy mechanism is 0.
        update = {name: result.up[name] if result.up else zeros_like(like) for name, like in likes.items()}
        reports = result.up.get(REPORTS, {})
        is_stack = self._stacks and result.contributed.any()
        if is_stack:
            if attack is not None and attack.colludes:
                update = attack.collude(update, self._attack_mask(exchange.clients, cohort)[result.contributed])
            weights = np.ones(len(exchange.clients)) if exchange.weights is None else exchange.weights
            if exchange.weighted_by:
                weights = weights * result.metrics[exchange.weighted_by]
            counted = torch.from_numpy(np.asarray(weights, np.float64)[result.contributed])
            reports = tree_map(lambda leaf: (counted @ leaf.double() / counted.sum()).float(), reports)
            if rule.incompatibility(len(counted)) is not None:
                # Too many clients dropped out or diverged.
                update = tree_map(lambda leaf: torch.zeros_like(leaf[0]), update)
            else:
                update = rule.combine(update, counted)
        for i, transform in reversed(list(enumerate(self.hyper.transforms))):
            for place, like in self._places(transform, step):
                seed = cohort.seed_for(f"transform {i} {step} {place} {number}")
                path = (str(i), step, place or "joint")
                source = update if transform.joint else update[place]
                state = {**_get(transforms, path), **_get(reports, (str(i), place or "joint"))}
                output, state = transform.server(
                    source, state, like, seed, int(result.contributed.sum()), self._bound_before(i, step, transforms)
                )
                update = output if transform.joint else {**update, place: output}
                if state:
                    _put(transforms, path, state)
        values = {
            name: add(exchange.broadcast[part.like], update[name]) if part.kind == "value" else update[name]
            for name, part in self.inner.parts[step].items()
            if name in update
        }
        others = {name: value for name, value in result.up.items() if name != REPORTS}
        return self.inner.project({**others, **values})

    def _bound_before(self, i: int, step: str, states: Tree) -> float | None:
        """Largest norm of the updates that transform i receives."""
        if not self.hyper.transforms[i].needs_bound or (clip := clip_before(self.hyper.transforms, i)) is None:
            return None
        return self.hyper.transforms[clip].bound(_get(states, (str(clip), step, "joint")))

    def evaluate_params(self, server: Tree) -> Tree:
        w = self.inner.evaluate_params(self._inner_state(server))
        return w if self.hyper.objective is None else self.hyper.objective.reported(w)

    # ---- client part -------------------------------------------------------------------------------------------------

    def init_client(self) -> Tree:
        objective = self.hyper.objective
        objective_state = {} if objective is None else objective.init_client(self.task)
        transforms = self._states(lambda transform, like: transform.init_client(like))
        return {**self.inner.init_client(), **_branches({OBJECTIVE: objective_state, TRANSFORMS: transforms})}

    def client_step(self, name: str) -> ClientStep:
        """Returns the inner algorithm's step with this name, wrapped by the slots, under the same name.

        A name that ends in `AS_IS` is that of a step that sends its own result.
        """
        if name not in self._steps:
            self._steps[name] = MethodType(_wrapped(name), self)
        return self._steps[name]

    def _step(
        self, full_name: str, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        name = full_name.removesuffix(AS_IS)
        objective = self.hyper.objective if name in self.inner.training_steps else None
        slot_state = {key: state[key] for key in (OBJECTIVE, TRANSFORMS) if key in state}
        inner_state = {key: entry for key, entry in state.items() if key not in slot_state}
        attacks, received = down.get(ATTACKS), down.get(RECEIVED, {})
        down = {key: entry for key, entry in down.items() if key not in (ATTACKS, RECEIVED)}
        if attacks is not None:
            data = self._poisoned(data, attacks)
        inner, context = self.inner, None
        if objective is not None:
            whole = {"w": inner.client_model(down, inner_state)} if "w" in down else {}
            loss, context = objective.begin(self.task, hp, {**down, **whole}, slot_state.get(OBJECTIVE, {}), data)
            inner = copy(inner)
            inner.task = inner.task.with_loss(loss)
        up, new_state, metrics = getattr(inner, name)(hp.algorithm, down, inner_state, data)
        if objective is not None and OBJECTIVE in slot_state and MODEL not in metrics:
            raise ContractError(
                f"its step `{name}` is one of `training_steps`, but returns no model, which the objective needs; "
                "return the client's model in the metrics under MODEL"
            )
        if objective is not None and MODEL in metrics:
            with evaluation_mode():
                memory, extra = objective.end(
                    self.task, hp, metrics[MODEL], slot_state.get(OBJECTIVE, {}), context, data
                )
            slot_state, metrics = {**slot_state, **_branches({OBJECTIVE: memory})}, {**metrics, **extra}
        if name == full_name and self._rewrites(name):
            up, new_state, transforms = self._sent(
                name, hp, down, inner_state, (up, new_state), slot_state.get(TRANSFORMS, {}), received, data, attacks
            )
            slot_state |= _branches({TRANSFORMS: transforms})
        return up, {**new_state, **slot_state}, metrics

    def _sent(
        self,
        step: str,
        hp: Any,
        down: Tree,
        state: Tree,
        answer: tuple[Tree, Tree],
        states: Tree,
        received: Tree,
        data: ClientData,
        attacks: Tensor | None,
    ) -> tuple[Tree, Tree, Tree]:
        """Returns a client's updates after all transforms, its new state, and its new states of the transforms.

        state: the client's state before the step.
        answer: the update and the new state that the step returned.
        received: entries of the server states of the transforms, see `_received`.
        attacks: whether the client attacks; None: there is no attack.
        """
        up, new_state = answer
        parts, transforms = self.inner.parts[step], self.hyper.transforms
        self._check_declared(step, up, down)
        covered_parts = {name: part for name, part in parts.items() if part.kind != "opaque"}
        update = {
            name: sub(up[name], down[part.like]) if part.kind == "value" else up[name]
            for name, part in covered_parts.items()
        }
        attack = self.hyper.attack
        if attack is not None and attacks is not None:
            key = None
            if attack.is_random:
                assert data.key is not None
                key = subkey(data.key, crc32(b"attack"))
            malicious = attack.client(hp.attack, update, key)
            update = tree_map(lambda bad, own: torch.where(attacks, bad, own), malicious, update)
        if not transforms:
            return {**up, **update}, new_state, states
        diverged = ~torch.stack([leaf.sum() for leaf in leaves(update)]).sum().isfinite()
        states = _copied(states)
        reports: Tree = {}
        message = update
        for i, transform in enumerate(transforms):
            places = [""] if transform.joint else list(update)
            for place in places:
                path, source = (str(i), step, place or "joint"), update if transform.joint else update[place]
                key = None
                if transform.is_random:
                    assert data.key is not None
                    key = subkey(data.key, crc32(f"{i} {place}".encode()))
                before = {**_get(states, path), **_get(received, (str(i), place or "joint"))}
                output, transform_state = transform.client(hp.transforms[i], source, before, key)
                if transform.reports:
                    _put(reports, (str(i), place or "joint"), {key: transform_state[key] for key in transform.reports})
                foreign = (*transform.receives, *transform.reports)
                transform_state = {key: entry for key, entry in transform_state.items() if key not in foreign}
                update = output if transform.joint else {**update, place: output}
                if transform_state:
                    _put(states, path, transform_state)
            if not transform.encodes:
                message = update
        values = {
            name: add(down[part.like], message[name]) if part.kind == "value" else message[name]
            for name, part in covered_parts.items()
        }
        new_state = {**new_state, **self.inner.remember(hp.algorithm, down, values, state)}
        return {**up, **_marked(update, diverged), **_branches({REPORTS: reports})}, new_state, states

    def _poisoned(self, data: ClientData, attacks: Tensor) -> ClientData:
        """Returns the data of a client, with flipped labels if it attacks in that way."""
        attack, classes = self.hyper.attack, self.classes
        if attack is None or not attack.flips_labels or classes is None:
            return data
        # Labels below 0 are hidden.
        return replace(data, relabel=lambda y: torch.where(attacks & (y >= 0), classes - 1 - y, y))

    def _check_declared(self, step: str, up: Tree, down: Tree) -> None:
        """Raises ContractError if the result of a step differs from the parts that the algorithm declares."""
        parts = self.inner.parts[step]
        if added := next((name for name in up if name not in parts), None):
            raise ContractError(
                f"its step `{step}` returns {added!r}, which is not declared; add it to `parts`, as opaque if slots "
                "must not change it"
            )
        if missing := next((name for name in parts if name not in up), None):
            raise ContractError(
                f"its step `{step}` does not return {missing!r}, which `parts` declares; return it, or remove it from "
                "`parts`"
            )
        for name, part in parts.items():
            if part.kind == "value" and part.like not in down:
                raise ContractError(
                    f"{name!r} of its step `{step}` is declared as a value of {part.like!r}, which the step does not "
                    "receive; broadcast it, or declare a difference"
                )
            if part.kind != "opaque" and _shapes(up[name]) != _shapes(self._initial[part.like]):
                raise ContractError(
                    f"{name!r} of its step `{step}` has another shape than {part.like!r} in `init_server`, which "
                    "`parts` names; name an entry of the same shape, or declare it as opaque"
                )


def _wrapped(name: str) -> Callable[..., Any]:
    """Returns a function with the name of an inner step."""

    def step(self: Slotted, hp: Any, down: Tree, state: Tree, data: ClientData) -> Any:
        return self._step(name, hp, down, state, data)

    step.__name__ = name
    return step


def _marked(update: Tree, diverged: Tensor) -> Tree:
    """Sets one leaf of the update to NaN if the client diverged, since a transform may hide that from the server."""
    first = next(iter(update))
    if not isinstance(update[first], dict):
        return {**update, first: torch.where(diverged, torch.nan, update[first])}
    return {**update, first: _marked(update[first], diverged)}


def _shapes(tree: Any) -> Any:
    """Shapes of a tree's leaves, by key."""
    return {key: _shapes(child) for key, child in tree.items()} if isinstance(tree, dict) else tree.shape


def _branches(tree: Tree) -> Tree:
    """Removes empty branches, which checkpoints do not keep."""
    return {key: branch for key, branch in tree.items() if branch}


def _copied(tree: Tree) -> Tree:
    """Copies the branches of a tree, so that they may be changed; leaves are shared."""
    return {key: _copied(child) if isinstance(child, dict) else child for key, child in tree.items()}


def _get(tree: Tree, path: tuple[str, ...]) -> Tree:
    for key in path:
        tree = tree.get(key, {})
    return tree


def _put(tree: Tree, path: tuple[str, ...], branch: Tree) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = branch
