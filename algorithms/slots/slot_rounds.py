"""The filled slots of an algorithm: they change the exchanges that they apply to, and finish their aggregates."""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.attacks.attack import Attack, attackers
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.keyed_random import subkey
from hedgerow.algorithms.core.layer_context import evaluation_mode
from hedgerow.algorithms.core.messages import Aggregate, ClientStep, Exchange, StepResult
from hedgerow.algorithms.core.parts import ContractError, MessageSize, Wire
from hedgerow.algorithms.core.pytree import Tree, add, leaves, shapes_of, sub, tree_map, zeros_like
from hedgerow.algorithms.objectives.objective import Objective
from hedgerow.algorithms.slots.middleware import AS_IS, ComposedAlgorithm, Middleware
from hedgerow.algorithms.slots.slot_answers import check_state, pair_of, update_and_state, update_of
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
"""Start of the metrics of a client step that the client parts of transforms report."""


class SlotRounds(Middleware):
    """The filled slots of an algorithm, next to it. Its steps receive only its own hyperparameters.

    classes: number of classes of the task, for attacks that flip labels.
    """

    def __init__(self, algorithm: ComposedAlgorithm, slots: Slots, classes: int | None = None):
        self.algorithm, self.inner, self.slots, self.classes = algorithm, algorithm.inner, slots, classes
        if slots.objective is not None and slots.objective.incompatibility(self.inner.task) is None:
            self.inner.task = slots.objective.task(self.inner.task)
        if changes_updates(slots):
            # Under vmap, `init_server` could not draw parameters.
            _ = self._initial

    def hyper(self, hyper: Any) -> SlottedHyper:
        return SlottedHyper.of(hyper, self.slots)

    def incompatibility(self) -> str | None:
        return slots_objection(self.inner, self.hyper(self.inner.hyper), self._initial)

    @cached_property
    def _initial(self) -> Tree:
        return self.inner.init_server()

    @property
    def keys(self) -> list[str]:
        return [key for key in (TRANSFORMS, OPTIMIZER) if key not in self._initial]

    def _likes(self, step: str) -> Tree:
        return covered(self.inner, step, self._initial)

    def _places(self, transform: Transform, step: str) -> list[tuple[str, Tree]]:
        """Returns where a transform acts in a step: ("", all parts) if `joint`, else (name, part) for each part."""
        like = self._likes(step)
        return [("", like)] if transform.joint else list(like.items())

    def _states(self, initial: Callable[[Transform, Tree], Tree]) -> Tree:
        """Returns the states of all transforms: number -> step -> part -> tree; without empty branches."""
        states: Tree = {}
        for i, transform in enumerate(self.slots.transforms):
            for step in self.inner.parts:
                for place, like in self._places(transform, step):
                    if state := initial(transform, like):
                        _put(states, (str(i), step, place or "joint"), state)
        return states

    # ---- server part -------------------------------------------------------------------------------------------------

    def init_server(self) -> Tree:
        transforms = self._states(lambda transform, like: transform.init_server(like))
        optimizer, key = self.slots.aggregation.server_optimizer, self.inner.optimizes
        memory = {} if optimizer.is_plain or key is None else optimizer.init(self._initial[key])
        return _branches({TRANSFORMS: transforms, OPTIMIZER: memory})

    def begin(self, server: Tree) -> None:
        self.states = _copied(server.get(TRANSFORMS, {}))
        self.has_too_few = False
        if self.trains:
            self.cohort = replace(self.cohort, weighting=weighting_of(self.inner, self.slots))

    def before(self, exchange: Exchange) -> Exchange:
        name = exchange.step.__name__
        if (objective := self._objective(name)) is not None:
            exchange = replace(exchange, batches=objective.batches(exchange.batches))
        if self.trains and exchange.site == "clients" and name in self.inner.parts:
            return self._changed(exchange)
        return replace(exchange, step=self.algorithm.client_step(name + AS_IS)) if self._rewrites(name) else exchange

    def after(self, exchange: Exchange, result: Aggregate) -> Aggregate:
        if not self._rewrites(exchange.step.__name__):
            return result
        if not result.contributed.any() and self._expected is None:
            return result
        return replace(result, up=self._finished(exchange, result), expected=self._expected)

    def end(self, server: Tree, after: Tree) -> Tree:
        if self.has_too_few:
            # Not even the momentum moves the model.
            return server
        optimizer, key = self.slots.aggregation.server_optimizer, self.inner.optimizes
        memory: Tree = {}
        if not optimizer.is_plain and key is not None:
            # Applied to the model after the round, not to an aggregate inside it, so that FedDyn's h stays valid.
            w, memory = optimizer.step(server[key], after[key], server.get(OPTIMIZER, {}))
            after = self.inner.project({**after, key: w})
        return {**after, **_branches({TRANSFORMS: self.states, OPTIMIZER: memory})}

    def reported(self, w: Tree, server: Tree) -> Tree:
        return w if self.slots.objective is None else self.slots.objective.reported(w)

    def _objective(self, step: str) -> Objective | None:
        """Returns the objective of a step; None if it has none."""
        return self.slots.objective if step in self.inner.training_steps else None

    @property
    def _expected(self) -> float | None:
        """Expected number of clients, by which a noisy sum is divided; None: it is divided by their actual number."""
        expected = [transform.expected_clients for transform in self.slots.transforms if transform.adds_server_noise]
        return next((number for number in expected if number is not None), None)

    @property
    def _stacks(self) -> bool:
        """Whether the server needs every update of a round."""
        attack = self.slots.attack
        return not self.slots.aggregation.rule.is_mean or (attack is not None and attack.colludes)

    def _attack_mask(self, clients: np.ndarray) -> np.ndarray:
        """Which of the clients attack."""
        assert self.slots.attack is not None
        return attackers(self.cohort.seed, self.cohort.population, self.slots.attack.fraction)[clients]

    def _rewrites(self, step: str) -> bool:
        """Whether a step sends its changed updates instead of its own result."""
        return changes_updates(self.slots) and step in self.inner.parts and bool(self._likes(step))

    def _changed(self, exchange: Exchange) -> Exchange:
        """Returns the exchange with the weights, reduction and randomness that the slots require."""
        name, slots, cohort = exchange.step.__name__, self.slots, self.cohort
        weights, weighted_by = exchange.weights, exchange.weighted_by
        if slots.aggregation.weighting is not None:
            weights, weighted_by = self.inner.weights(cohort), None
            if weights is not None:
                weights = weights[np.searchsorted(cohort.clients, exchange.clients)]
        replacement = replace(exchange, weights=weights, weighted_by=weighted_by)
        if not self._rewrites(name):
            return replacement
        if exchange.reduce != "mean":
            raise ContractError(
                f"the exchange of `{name}` has reduce={exchange.reduce!r}, but `parts` names this step; set it to "
                "'mean', or remove the step from `parts`"
            )
        rule = slots.aggregation.rule
        if not rule.uses_weights and (weights is not None or weighted_by):
            raise ContractError(
                f"the exchange of `{name}` weights clients, but {rule.kind} treats them equally; set "
                "aggregation.weighting to uniform"
            )
        if (weights is not None or weighted_by) and any(transform.adds_server_noise for transform in slots.transforms):
            raise ContractError(
                f"the exchange of `{name}` weights clients, but the noise is that of an unweighted mean; set "
                "aggregation.weighting to uniform"
            )
        if received := self._received(name):
            replacement = replace(replacement, broadcast={**exchange.broadcast, RECEIVED: received})
        if self._stacks:
            replacement = replace(replacement, reduce="stack")
        if slots.transforms:
            keyed = exchange.keyed or any(transform.is_random for transform in slots.transforms)
            replacement = replace(replacement, keyed=keyed, wire=self._message_size(name))
        if slots.attack is not None:
            mask = {ATTACKS: torch.from_numpy(self._attack_mask(exchange.clients))}
            replacement = replace(
                replacement,
                keyed=replacement.keyed or slots.attack.is_random,
                local_inputs_per_client={**exchange.local_inputs_per_client, **mask},
            )
        return replacement

    def _message_size(self, step: str) -> MessageSize:
        """Size of each client's message in a step."""
        wires = {name: Wire.of(self._initial[part.like]) for name, part in self.inner.parts[step].items()}
        for transform in self.slots.transforms:
            for name in list(self._likes(step))[: 1 if transform.joint else None]:
                wires[name] = transform.wire(wires[name])
        bits = sum(len(transform.reports) * len(self._places(transform, step)) for transform in self.slots.transforms)
        return MessageSize(
            sum(wire.scalars for wire in wires.values()) + bits, sum(wire.bits for wire in wires.values()) + bits
        )

    def _received(self, step: str) -> Tree:
        """Entries of the server states of the transforms that clients receive: number -> part -> tree."""
        received: Tree = {}
        for i, transform in enumerate(self.slots.transforms):
            for place, _ in self._places(transform, step) if transform.receives else ():
                state = _get(self.states, (str(i), step, place or "joint"))
                _put(received, (str(i), place or "joint"), {key: state[key] for key in transform.receives})
        return received

    def _finished(self, exchange: Exchange, result: Aggregate) -> Tree:
        """Converts the reduced updates to the aggregate that the inner algorithm expects."""
        step, rule, attack = exchange.step.__name__, self.slots.aggregation.rule, self.slots.attack
        likes = self._likes(step)
        # Without any client, the sum of a noisy mechanism is 0.
        update = {name: result.up[name] if result.up else zeros_like(like) for name, like in likes.items()}
        is_stack = self._stacks and result.contributed.any()
        if is_stack:
            if attack is not None and attack.colludes:
                update = attack.collude(update, self._attack_mask(exchange.clients)[result.contributed])
            weights = np.ones(len(exchange.clients)) if exchange.weights is None else exchange.weights
            if exchange.weighted_by:
                weights = weights * result.metrics[exchange.weighted_by]
            counted = torch.from_numpy(np.asarray(weights, np.float64)[result.contributed])
            if rule.incompatibility(len(counted)) is not None:
                # Too many clients dropped out or diverged.
                self.has_too_few = True
                update = tree_map(lambda leaf: torch.zeros_like(leaf[0]), update)
            else:
                update = update_of(rule.combine(update, counted), likes, "combine", "aggregation.rule")
                # Weights are in double precision.
                update = tree_map(lambda leaf: leaf.float() if leaf.dtype == torch.float64 else leaf, update)
        # Noise that two trials share would not hide the difference of their updates.
        trial = "" if self.cohort.trial is None else f" of trial {self.cohort.trial}"
        for i, transform in reversed(list(enumerate(self.slots.transforms))):
            for place, like in self._places(transform, step):
                seed = self.cohort.seed_for(f"transform {i} {step} {place} {exchange.position}{trial}")
                path = (str(i), step, place or "joint")
                source = update if transform.joint else update[place]
                # Not weighted, unlike the updates.
                reports = {
                    key: torch.tensor(result.metrics[_report(path, key)][result.contributed].mean()).float()
                    for key in transform.reports
                    if result.contributed.any()
                }
                state = {**_get(self.states, path), **reports}
                output, state = update_and_state(
                    transform.server(source, state, like, seed, result.updates, self._bound_before(i, step)),
                    None,
                    like,
                    "server",
                    f"transforms.{i}.kind",
                )
                update = output if transform.joint else {**update, place: output}
                if state:
                    _put(self.states, path, state)
        values = {
            name: add(exchange.broadcast[part.like], update[name]) if part.kind == "value" else update[name]
            for name, part in self.inner.parts[step].items()
            if name in update
        }
        return self.inner.project({**result.up, **values})

    def _bound_before(self, i: int, step: str) -> float | None:
        """Largest norm of the updates that transform i receives."""
        if not self.slots.transforms[i].needs_bound or (clip := clip_before(self.slots.transforms, i)) is None:
            return None
        return self.slots.transforms[clip].bound(_get(self.states, (str(clip), step, "joint")))

    # ---- client part -------------------------------------------------------------------------------------------------

    def init_client(self) -> Tree:
        objective = self.slots.objective
        objective_state = {} if objective is None else objective.init_client(self.inner.task)
        transforms = self._states(lambda transform, like: transform.init_client(like))
        return _branches({OBJECTIVE: objective_state, TRANSFORMS: transforms})

    def client(self, name: str, step: ClientStep, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        rewrites, name = self._rewrites(name), name.removesuffix(AS_IS)
        task, objective = self.inner.task, self._objective(name)
        slot_state = {key: state[key] for key in (OBJECTIVE, TRANSFORMS) if key in state}
        inner_state = {key: entry for key, entry in state.items() if key not in slot_state}
        attacks, received = down.get(ATTACKS), down.get(RECEIVED, {})
        down = {key: entry for key, entry in down.items() if key not in (ATTACKS, RECEIVED)}
        if attacks is not None:
            data = self._poisoned(data, attacks)
        context: Any = None
        if objective is not None:
            whole = {"w": self.inner.client_model(down, inner_state)} if "w" in down else {}
            begun = objective.begin(task, hp, {**down, **whole}, slot_state.get(OBJECTIVE, {}), data)
            loss, context = pair_of(begun, "begin", "loss, context", "objective.kind")
            inner = copy(self.inner)
            inner.task = task.with_loss(loss)
            step = getattr(inner, name)
        up, new_state, metrics, model = StepResult.of(step(hp.algorithm, down, inner_state, data))
        if objective is not None and OBJECTIVE in slot_state and model is None:
            raise ContractError(
                f"its step `{name}` is one of `training_steps`, but returns no model, which the objective needs; "
                "return it as the `model` of the StepResult"
            )
        if objective is not None and model is not None:
            with evaluation_mode():
                ended = objective.end(task, hp, model, slot_state.get(OBJECTIVE, {}), context, data)
            memory, extra = pair_of(ended, "end", "state, metrics", "objective.kind")
            check_state(memory, slot_state.get(OBJECTIVE, {}), "end", "objective.kind")
            slot_state, metrics = {**slot_state, **_branches({OBJECTIVE: memory})}, {**metrics, **extra}
        if rewrites:
            up, new_state, transforms, reports = self._sent(
                name, hp, down, inner_state, (up, new_state), slot_state.get(TRANSFORMS, {}), received, data, attacks
            )
            slot_state, metrics = slot_state | _branches({TRANSFORMS: transforms}), {**metrics, **reports}
        return StepResult(up, {**new_state, **slot_state}, metrics, model)

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
    ) -> tuple[Tree, Tree, Tree, dict[str, Tensor]]:
        """Returns a client's updates after all transforms, its new state, its new states of the transforms, and what
        these report.

        state: the client's state before the step.
        answer: the update and the new state that the step returned.
        received: entries of the server states of the transforms, see `_received`.
        attacks: whether the client attacks; None: there is no attack.
        """
        up, new_state = answer
        parts, transforms = self.inner.parts[step], self.slots.transforms
        self._check_declared(step, up, down)
        covered_parts = {name: part for name, part in parts.items() if part.kind != "opaque"}
        update = {
            name: sub(up[name], down[part.like]) if part.kind == "value" else up[name]
            for name, part in covered_parts.items()
        }
        attack = self.slots.attack
        if attack is not None and attacks is not None:
            malicious = attack.client(hp.attack, update, _key(attack, data, "attack"))
            update = tree_map(lambda bad, own: torch.where(attacks, bad, own), malicious, update)
        if not transforms:
            return {**up, **update}, new_state, states, {}
        diverged = ~torch.stack([leaf.sum() for leaf in leaves(update)]).sum().isfinite()
        states = _copied(states)
        reports: dict[str, Tensor] = {}
        message = update
        for i, transform in enumerate(transforms):
            places = [""] if transform.joint else list(update)
            for place in places:
                path, source = (str(i), step, place or "joint"), update if transform.joint else update[place]
                key = _key(transform, data, f"{i} {place}")
                before = {**_get(states, path), **_get(received, (str(i), place or "joint"))}
                output, transform_state = update_and_state(
                    transform.client(hp.transforms[i], source, before, key),
                    {**before, **dict.fromkeys(transform.reports)},
                    None if transform.encodes else source,
                    "client",
                    f"transforms.{i}.kind",
                )
                reports |= {_report(path, key): transform_state[key] for key in transform.reports}
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
        return {**up, **_marked(update, diverged)}, new_state, states, reports

    def _poisoned(self, data: ClientData, attacks: Tensor) -> ClientData:
        """Returns the data of a client, with flipped labels if it attacks in that way."""
        attack, classes = self.slots.attack, self.classes
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
            if part.kind != "opaque" and shapes_of(up[name]) != shapes_of(self._initial[part.like]):
                raise ContractError(
                    f"{name!r} of its step `{step}` has another shape than {part.like!r} in `init_server`, which "
                    "`parts` names; name an entry of the same shape, or declare it as opaque"
                )


def _key(slot: Attack | Transform, data: ClientData, purpose: str) -> Tensor | None:
    """Random key of a client's attack or transform; None if it draws no numbers."""
    if not slot.is_random:
        return None
    assert data.key is not None
    return subkey(data.key, crc32(purpose.encode()))


def _report(path: tuple[str, ...], key: str) -> str:
    """Name of the metric that has what a transform reports."""
    return "/".join((REPORTS, *path, key))


def _marked(update: Tree, diverged: Tensor) -> Tree:
    """Sets one leaf of the update to NaN if the client diverged, since a transform may hide that from the server."""
    first = next(iter(update))
    if not isinstance(update[first], dict):
        return {**update, first: torch.where(diverged, torch.nan, update[first])}
    return {**update, first: _marked(update[first], diverged)}


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
