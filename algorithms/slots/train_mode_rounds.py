"""Rounds with a model that differs in training mode, such as one with batch norm or dropout.

Each client step runs in a `LayerContext`: training steps in training mode, with random numbers keyed by the client, all
others in evaluation mode. Buffers that training changes are part of the server state: they are broadcast
with the model, sent with the update, and averaged by the number of training samples. With `buffers: local`, and where
the algorithm's `keeps_buffer` says so, they are client state.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.layer_context import LayerContext, TrainMode
from hedgerow.algorithms.core.messages import Aggregate, ClientStep, Cohort, Exchange, StepResult
from hedgerow.algorithms.core.parts import MessageSize, Wire
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.slots.middleware import AS_IS, ComposedAlgorithm, Middleware

BUFFERS = "buffers"
"""Key of buffers in server state, client state, broadcasts and updates."""

SHARE = "buffer_share"
"""Key of a client's weight in the average of buffers, in its input and its update. It is not transmitted."""


class TrainModeRounds(Middleware):
    """Runs the steps of an algorithm whose task has a `train_mode`."""

    keys = (BUFFERS,)

    def __init__(self, algorithm: ComposedAlgorithm):
        self.algorithm = algorithm

    @property
    def mode(self) -> TrainMode:
        mode = self.algorithm.task.train_mode
        assert mode is not None, "without one, there is no middleware for it"
        return mode

    @property
    def is_averaged(self) -> bool:
        """Whether the server averages buffers."""
        return bool(self._kept(local=False))

    @property
    def is_local(self) -> bool:
        """Whether buffers are client state."""
        return bool(self._kept(local=True))

    def _kept(self, local: bool) -> list[str]:
        """Names of the buffers that are client state, or of those that the server averages."""
        everywhere = self.mode.policy == "local"
        return [name for name in self.mode.kept if (everywhere or self.algorithm.inner.keeps_buffer(name)) == local]

    def _initial(self, local: bool) -> Tree:
        """Initial values of these buffers under `BUFFERS`; {} if there are none."""
        names, values = self._kept(local), self.mode.initial(self.algorithm.task.module)
        return {BUFFERS: {name: values[name] for name in names}} if names else {}

    def incompatibility(self) -> str | None:
        inner, name, layers = self.algorithm.inner, self.algorithm.hyper.name, self.mode.layers
        objective = getattr(self.algorithm.hyper, "objective", None)
        if not inner.training_steps:
            return (
                f"task.model: {name} does not support a model with {layers} in training; choose one without, or an "
                "algorithm with `training_steps`, such as fedavg"
            )
        if objective is not None and not objective.calls_logits:
            return (
                f"objective: {objective.kind} reads features inside the model, which has {layers} in training; choose "
                "a model without, or another objective"
            )
        if getattr(inner.hyper, "starts", 1) > 1:
            return f"algorithm.starts: models with {layers} are not trained side by side; set it to 1"
        if getattr(inner.hyper, "solver", "sgd") == "newton":
            return f"algorithm.solver: newton needs one function to minimise, and the model has {layers}; set it to sgd"
        if self.is_local and inner.trains_on == "pool":
            return f"task.model.buffers: {name} has no clients that could keep their own; set it to average"
        return None

    # ---- server part -------------------------------------------------------------------------------------------------

    def init_server(self) -> Tree:
        return self._initial(local=False)

    def begin(self, server: Tree) -> None:
        self.buffers = server.get(BUFFERS, {})

    def before(self, exchange: Exchange) -> Exchange:
        exchange = replace(exchange, keyed=True)
        if self.is_averaged:
            exchange = replace(exchange, broadcast={**exchange.broadcast, BUFFERS: self.buffers})
        return self._changed(exchange) if self.trains else exchange

    def after(self, exchange: Exchange, result: Aggregate) -> Aggregate:
        if BUFFERS not in result.up:
            return result
        self.buffers = _averaged(self.buffers, result)
        return replace(result, up={key: entry for key, entry in result.up.items() if key not in (BUFFERS, SHARE)})

    def end(self, server: Tree, after: Tree) -> Tree:
        return {**after, BUFFERS: self.buffers} if self.is_averaged else after

    def reported(self, w: Tree, server: Tree) -> Tree:
        """Adds the buffers that the server has."""
        return {**w, **server.get(BUFFERS, {})}

    def _changed(self, exchange: Exchange) -> Exchange:
        """Exchange of a round, with the weights of buffers."""
        if not self.is_averaged or not self._trains(exchange.step.__name__):
            return exchange
        inputs = exchange.local_inputs_per_client
        changes: dict[str, Any] = {"local_inputs_per_client": {**inputs, SHARE: _shares(exchange, self.cohort)}}
        if exchange.wire is None:
            padding = 0 if exchange.padding_up is None else exchange.padding_up
            # The server knows the weight.
            changes["padding_up"] = padding + np.full(len(exchange.clients), 1)
        else:
            own = [Wire.of({name: value}) for name, value in self.buffers.items()]
            changes["wire"] = MessageSize(
                exchange.wire.scalars + sum(wire.scalars for wire in own),
                exchange.wire.bits + sum(wire.bits for wire in own),
            )
        return replace(exchange, **changes)

    def _trains(self, step: str) -> bool:
        return step.removesuffix(AS_IS) in self.algorithm.inner.training_steps

    # ---- client part -------------------------------------------------------------------------------------------------

    def init_client(self) -> Tree:
        return self._initial(local=True)

    def client(self, name: str, step: ClientStep, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        own, averaged = state.get(BUFFERS, {}), down.get(BUFFERS, {})
        trains = self._trains(name)
        context = LayerContext(self.mode, trains, {**averaged, **own})
        own_down = {key: entry for key, entry in down.items() if key not in (BUFFERS, SHARE)}
        if self.mode.changes_parameters:
            # The message and the state belong to all steps in this process.
            own_down, state = tree_map(Tensor.clone, own_down), tree_map(Tensor.clone, state)
        with context.entered():
            own_state = {key: entry for key, entry in state.items() if key != BUFFERS}
            result = StepResult.of(step(hp, own_down, own_state, data))
        up, new_state, metrics, model = result
        if own:
            new_state = {**new_state, BUFFERS: {name: context.buffers[name] for name in own}}
        if SHARE in down:
            share = down[SHARE]
            after = {name: context.buffers[name] for name in averaged}
            sums = {name: value.to(_wide(value)) * share.to(_wide(value)) for name, value in after.items()}
            up = {**up, BUFFERS: sums, SHARE: share}
        if model is not None and trains:
            model = {**model, **context.buffers}
        return StepResult(up, new_state, metrics, model)


def _shares(exchange: Exchange, cohort: Cohort) -> Tensor:
    """Weight of each client's buffers, (clients,) float32, such that weighted sums over clients, with the weights of
    the exchange, are sums weighted by the number of training samples.
    """
    n = len(exchange.clients)
    if exchange.site != "clients":
        return torch.ones(n)
    sizes = cohort.sizes[np.searchsorted(cohort.clients, exchange.clients)].astype(np.float64)
    if exchange.weights is not None and exchange.reduce != "stack":
        weights = np.asarray(exchange.weights, np.float64)
        sizes = np.divide(sizes, weights, out=np.zeros(n), where=weights > 0)
    return torch.from_numpy(sizes).float()


def _averaged(before: Tree, result: Aggregate) -> Tree:
    """Mean of the clients' buffers, with the types of `before`; whole numbers are rounded."""
    sums, total = result.up[BUFFERS], result.up[SHARE].double()
    is_stack = total.dim() > 0
    total = total.sum() if is_stack else total
    if not total > 0:
        return before
    mean = {name: (value.double().sum(0) if is_stack else value.double()) / total for name, value in sums.items()}
    return typed(mean, before)


def typed(means: Tree, like: Tree) -> Tree:
    """Means with the types of `like`; whole numbers are rounded."""
    return {
        name: (means[name] if leaf.is_floating_point() else means[name].round()).to(leaf.dtype)
        for name, leaf in like.items()
    }


def _wide(value: Tensor) -> torch.dtype:
    """Type in which a buffer is sent: whole numbers as 64-bit floats."""
    return value.dtype if value.is_floating_point() else torch.float64
