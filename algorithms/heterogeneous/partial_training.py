"""Partial training: clients of different capacities learn sub-models of one model (Diao et al., "HeteroFL", 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Aggregate
from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, stack, sub, tree_map, unstack, zeros_like
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.heterogeneous.capacities import (
    CAPACITIES,
    ByLayers,
    Capacity,
    Heterogeneous,
    averaged,
    by_capacity,
    classes_of,
    masked_loss,
)
from hedgerow.algorithms.nn.submodel import OUTPUTS, Channels, submodel_incompatibility
from hedgerow.algorithms.optim.local_sgd import minimize


class PartialTrainingHyper(Heterogeneous):
    """Hyperparameters of all who train sub-models."""

    capacities: list[Capacity] = Field(
        CAPACITIES,
        min_length=1,
        description="shares of each layer's channels; a client has one of them, drawn uniformly",
    )
    scaler: bool = Field(True, description="in training, divide what a layer puts out by the share of its channels")


@dataclass(frozen=True)
class CapacityGroup:
    """The clients of a round that have one capacity.

    channels: of their sub-model; where every client has its own, with a leading dimension of clients.
    """

    capacity: float
    clients: np.ndarray
    channels: Channels


class PartialTraining(ByLayers):
    """A client gets a sub-model and returns how it moved; the server averages, parameter by parameter.

    Which channels the sub-model has is what the methods differ in.
    """

    alike: bool = True
    """Whether all clients of a capacity have the same channels in a round."""

    def channels(self, capacity: float, cohort: Cohort, client: int) -> Channels:
        """Those of a client's sub-model in this round."""
        raise NotImplementedError

    def incompatibility(self) -> str | None:
        return submodel_incompatibility(self.task, self.hyper.name)

    # ---- the server's half ------------------------------------------------------------------------------------------

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        groups = self.groups(cohort)
        results = yield [self.exchange(server["w"], group, cohort) for group in groups]
        return {"w": self.average(server["w"], groups, results)}

    def groups(self, cohort: Cohort) -> list[CapacityGroup]:
        """The round's clients by capacity."""
        groups = []
        for capacity, clients in by_capacity(cohort, self.hyper.capacities, self.hyper.redraw):
            asked = clients[:1] if self.alike else clients
            own = [self.channels(capacity, cohort, int(client)) for client in asked]
            groups.append(CapacityGroup(capacity, clients, own[0] if self.alike else stack(*own)))
        return groups

    def exchange(self, w: Params, group: CapacityGroup, cohort: Cohort) -> Exchange:
        common = {"local_inputs": self.known(group.capacity, self.macs(group)), "batches": self.hyper.batches}
        if self.alike:
            down = {"w": self.layout.part(w, group.channels)}
            return Exchange(self.train, down, group.clients, reduce="sum", **common)
        parts = stack(*(self.layout.part(w, channels) for channels in unstack(group.channels)))
        return Exchange(self.train, {}, group.clients, per_client={"w": parts}, reduce="stack", **common)

    def known(self, capacity: float, macs: float) -> Tree:
        """What the clients of a capacity know of their sub-model."""
        return {"width": torch.tensor(self.width(capacity)), "macs": torch.tensor(float(macs))}

    def width(self, capacity: float) -> float:
        """The share of each layer's channels that a client of a capacity has."""
        return capacity

    def macs(self, group: CapacityGroup) -> float:
        """Multiply-adds of one sample in the group's sub-model."""
        return self.layout.macs({space: kept.shape[-1] for space, kept in group.channels.items()})

    def average(self, w: Params, groups: list[CapacityGroup], results: list[Aggregate]) -> Params:
        """w, moved by what came back: parameter by parameter the mean over those who trained it, or over all."""
        moves, holders, sampled_clients = zeros_like(w), zeros_like(w), 0
        for group, result in zip(groups, results, strict=True):
            for channels, up, number in self._answers(group, result):
                on = {space: _on(kept, self.layout.sizes[space]) for space, kept in channels.items()}
                if "classes" in up:
                    on[OUTPUTS] = up["classes"] / number
                moves = add(moves, self.layout.whole(up["moved"], channels))
                holders = tree_map(lambda p, mask, number=number: p + number * mask, holders, self.layout.mask(on))
                sampled_clients += number
        return averaged(self.hyper, w, moves, holders, sampled_clients)

    def _answers(self, group: CapacityGroup, result: Aggregate) -> Iterator[tuple[Channels, Tree, int]]:
        """(channels, sum of the answers, how many they are): of the group, or of each of its clients."""
        kept = torch.from_numpy(result.contributed)
        if not kept.any():
            return
        own = result.up.get("channels") or (None if self.alike else tree_map(lambda c: c[kept], group.channels))
        if own is None:
            yield group.channels, result.up, int(kept.sum())
            return
        for channels, up in zip(unstack(own), unstack(result.up), strict=True):
            yield tree_map(lambda c: c.long(), channels), up, 1

    # ---- the client's half ------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        here = classes_of(data, self.layout.sizes[OUTPUTS]) if hp.masked_loss else None
        learnt, loss = minimize(self.local_loss(hp, down, here), down["w"], data, hp)
        up: Tree = {"moved": sub(learnt, down["w"])}
        if here is not None:
            # Weight decay moves the others as well.
            mask = self.layout.mask({OUTPUTS: here})
            up = {"moved": tree_map(torch.mul, up["moved"], mask), "classes": here}
        samples = data.streams["train"][1].sum()
        return up, state, {"loss": loss, "spent_gmacs": 3e-9 * down["macs"] * samples}

    def local_loss(self, hp: Any, down: Tree, here: Tensor | None) -> Any:
        """The loss of a sub-model's parameters on a batch. here: which classes the client has, or None."""

        def loss(w: Params, batch: Batch) -> Tensor:
            return masked_loss(self.task, self.layout.scale(w, 1 / down["width"]) if hp.scaler else w, batch, here)

        return loss


def _on(kept: Tensor, size: int) -> Tensor:
    return torch.zeros(size).index_fill(0, kept, 1.0)
