"""The exchange of an asynchronous round: clients that start from different server versions, and their common update."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.messages import Aggregate, Exchange, ExchangeSteps
from hedgerow.algorithms.core.parts import ContractError, Part, Parts
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.slots.middleware import Middleware
from hedgerow.platform.config.schedule_section import FedAsyncSchedule, Schedule
from hedgerow.platform.schedules.events import Group


class StaleRound(Middleware):
    """Runs the exchange of a round with clients that start from different versions.

    version: number of server steps before. versions: messages of earlier versions. parts, hyper: of the algorithm.
    """

    def __init__(
        self, schedule: Schedule, version: int, arrived: list[Group], versions: Tree, parts: Parts, hyper: Any
    ):
        self.schedule, self.version, self.arrived = schedule, version, arrived
        self.versions, self.parts = versions, parts
        # With transforms or attacks, clients send differences to the message that they received.
        self.sends_differences = bool(getattr(hyper, "transforms", ())) or getattr(hyper, "attack", None) is not None

    def parallel(self, exchanges: list[Exchange], number: int) -> ExchangeSteps:
        exchange, arrived = exchanges[0], self.arrived
        parts = self.parts.get(exchange.step.__name__)
        if number or len(exchanges) > 1 or exchange.per_client or exchange.reduce != "mean" or parts is None:
            raise ContractError(
                "it declares `single_exchange`, but its round is not one exchange whose `parts` are averaged; set "
                "`single_exchange` to False"
            )
        only = arrived[0] if len(arrived) == 1 else None
        sent = [_from_version(exchange, group, self.version, self.versions) for group in arrived]
        # The same exchange, so that updates without staleness give the bits of a synchronous round.
        sent = [exchange] if only and only.version == self.version else sent
        results = yield sent
        staleness = self.version - np.array([group.version for group in arrived], float)
        factors = self.schedule.staleness.factors(staleness)
        mixes = isinstance(self.schedule, FedAsyncSchedule)
        factors = self.schedule.alpha * factors if isinstance(self.schedule, FedAsyncSchedule) else factors
        if only and only.version == self.version and factors[0] == 1:
            return results
        pieces = [
            (result, exchange.broadcast if mixes else one.broadcast, factor, weight)
            for result, one, factor, weight in zip(
                results, sent, factors, _weights(exchange, arrived, results), strict=True
            )
            if result.up
        ]
        up = _combined(exchange, pieces, parts, self.sends_differences) if pieces else {}
        return [_merged(exchange, arrived, results, up)]


def _from_version(exchange: Exchange, group: Group, version: int, versions: Tree) -> Exchange:
    """Exchange with a group of clients, which have received the message of their version."""
    rows = np.searchsorted(exchange.clients, group.clients)
    weights = None if exchange.weights is None else np.asarray(exchange.weights)[rows]
    return replace(
        exchange,
        clients=exchange.clients[rows],
        broadcast=exchange.broadcast if group.version == version else versions[str(group.version)],
        # A group has a mean even if its weight in the mean of all groups is 0.
        weights=weights if weights is not None and weights.any() else None,
        local_inputs_per_client=tree_map(lambda leaf: leaf[rows], exchange.local_inputs_per_client),
        padding_down=None if exchange.padding_down is None else exchange.padding_down[rows],
        padding_up=None if exchange.padding_up is None else exchange.padding_up[rows],
    )


def _weights(exchange: Exchange, arrived: list[Group], results: list[Aggregate]) -> list[float]:
    """Weight of each group in the mean of all."""
    weights = []
    for group, result in zip(arrived, results, strict=True):
        rows = np.searchsorted(exchange.clients, group.clients)
        each = np.ones(len(rows)) if exchange.weights is None else np.asarray(exchange.weights, np.float64)[rows]
        each = each * result.metrics[exchange.weighted_by] if exchange.weighted_by else each
        weights.append(float(each[result.contributed].sum()))
    return weights


def _combined(
    exchange: Exchange, pieces: list[tuple[Aggregate, Tree, float, float]], parts: Any, sends_differences: bool
) -> Tree:
    """Mean of the groups' updates, times their factors, in the form that the algorithm expects.

    pieces: for each group the result, the tree that its values are compared with, its factor, and its weight.
    """
    total = sum(weight for *_, weight in pieces)
    if not total > 0:
        raise ContractError("the clients' weights of an exchange are all 0, so that they have no mean")

    def mean(part: Part | None, name: str) -> Any:
        is_value = part is not None and part.kind == "value" and not sends_differences
        is_plain = part is None or part.kind == "opaque"
        sums: Any = None
        for result, reference, factor, weight in pieces:
            change = result.up[name]
            if is_value:
                change = _mapped(lambda a, b: a.double() - b.double(), change, reference[part.like])  # type: ignore[union-attr]
            scale = weight / total * (1.0 if is_plain else factor)
            change = _mapped(lambda leaf, scale=scale: scale * leaf.double(), change)
            sums = change if sums is None else _mapped(torch.add, sums, change)
        if is_value:
            sums = _mapped(lambda a, b: a + b.double(), sums, exchange.broadcast[part.like])  # type: ignore[union-attr]
        return _mapped(lambda leaf, like: leaf.to(like.dtype), sums, pieces[0][0].up[name])

    return {name: mean(parts.get(name), name) for name in pieces[0][0].up}


def _mapped(function: Callable[..., Tensor], first: Any, *others: Any) -> Any:
    """Applies a function to leaves; an entry of an update may be a single tensor."""
    return tree_map(function, first, *others) if isinstance(first, dict) else function(first, *others)


def _merged(exchange: Exchange, arrived: list[Group], results: list[Aggregate], up: Tree) -> Aggregate:
    """Result of all groups, with one row per client. Of a client that arrives twice, the last metrics remain."""
    contributed = np.zeros(len(exchange.clients), bool)
    metrics: dict[str, np.ndarray] = {}
    for group, result in zip(arrived, results, strict=True):
        rows = np.searchsorted(exchange.clients, group.clients)
        contributed[rows] |= result.contributed
        for name, values in result.metrics.items():
            metrics.setdefault(name, np.full(len(exchange.clients), np.nan))[rows] = values
    repeated = sum(int(result.contributed.sum()) for result in results) - int(contributed.sum())
    return Aggregate(up, contributed, metrics, repeated=repeated)
