"""Partial training: clients of different capacities learn sub-models of one model (Diao et al., "HeteroFL", 2021)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange, Exchanges
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
    """Hyperparameters of algorithms whose clients train sub-models."""

    capacities: list[Capacity] = Field(
        CAPACITIES,
        min_length=1,
        description="shares of each layer's channels; each client has one of them, drawn uniformly",
    )
    scaler: bool = Field(True, description="in training, divide a layer's output by the share of its channels")


@dataclass(frozen=True)
class CapacityGroup:
    """Clients of a round that have the same capacity.

    channels: channels of their sub-model, with a leading dimension of clients if every client has its own.
    """

    capacity: float
    clients: np.ndarray
    channels: Channels


class PartialTraining(ByLayers):
    """Base class in which clients train sub-models and the server averages their updates, parameter by parameter.

    Subclasses define the channels of a sub-model.
    """

    Hyper = PartialTrainingHyper

    alike: bool = True
    """Whether all clients of a capacity have the same channels in a round."""

    def channels(self, capacity: float, cohort: Cohort, client: int) -> Channels:
        """Channels of a client's sub-model in this round."""
        raise NotImplementedError

    def incompatibility(self) -> str | None:
        return submodel_incompatibility(self.task, self.hyper.name)

    # ---- server -----------------------------------------------------------------------------------------------------

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        groups = self.groups(cohort)
        results = yield [self.exchange(server["w"], group, cohort) for group in groups]
        return {"w": self.average(server["w"], groups, results)}

    def groups(self, cohort: Cohort) -> list[CapacityGroup]:
        """Clients of the round, grouped by capacity."""
        groups = []
        for capacity, clients in by_capacity(cohort, self.hyper.capacities, self.hyper.redraw):
            members = clients[:1] if self.alike else clients
            own = [self.channels(capacity, cohort, int(client)) for client in members]
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
        """Inputs by which the clients of a capacity know their sub-model."""
        return {"width": torch.tensor(self.width(capacity)), "macs": torch.tensor(float(macs))}

    def width(self, capacity: float) -> float:
        """Share of each layer's channels in the sub-model of a capacity."""
        return capacity

    def macs(self, group: CapacityGroup) -> float:
        """Multiply-adds of one sample in the group's sub-model."""
        return self.layout.macs({space: channels.shape[-1] for space, channels in group.channels.items()})

    def average(self, w: Params, groups: list[CapacityGroup], results: list[Aggregate]) -> Params:
        """w after the server step; a parameter's updates are averaged over the clients that trained it, or over all."""
        moves, holders, sampled_clients = zeros_like(w), zeros_like(w), 0
        for group, result in zip(groups, results, strict=True):
            for channels, up, number in self._answers(group, result):
                on = {space: _on(indices, self.layout.sizes[space]) for space, indices in channels.items()}
                if "classes" in up:
                    on[OUTPUTS] = up["classes"] / number
                moves = add(moves, self.layout.whole(up["moved"], channels))
                holders = tree_map(lambda p, mask, number=number: p + number * mask, holders, self.layout.mask(on))
                sampled_clients += number
        return averaged(self.hyper, w, moves, holders, sampled_clients)

    def _answers(self, group: CapacityGroup, result: Aggregate) -> Iterator[tuple[Channels, Tree, int]]:
        """Yields (channels, sum of the answers, number of clients), for the whole group or for each of its clients."""
        mask = torch.from_numpy(result.contributed)
        if not mask.any():
            return
        own = result.up.get("channels") or (None if self.alike else tree_map(lambda c: c[mask], group.channels))
        if own is None:
            yield group.channels, result.up, int(mask.sum())
            return
        for channels, up in zip(unstack(own), unstack(result.up), strict=True):
            yield tree_map(lambda c: c.long(), channels), up, 1

    # ---- clients ----------------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        here = classes_of(data, self.layout.sizes[OUTPUTS]) if hp.masked_loss else None
        new_w, loss = minimize(self.local_loss(hp, down, here), down["w"], data, hp)
        up: Tree = {"moved": sub(new_w, down["w"])}
        if here is not None:
            # Weight decay also changes absent classes, so their updates are masked.
            mask = self.layout.mask({OUTPUTS: here})
            up = {"moved": tree_map(torch.mul, up["moved"], mask), "classes": here}
        samples = data.streams["train"][1].sum()
        return up, state, {"loss": loss, "spent_gmacs": 3e-9 * down["macs"] * samples}

    def local_loss(self, hp: Any, down: Tree, here: Tensor | None) -> Any:
        """Loss of a sub-model's parameters on a batch. here: classes that the client has, or None."""

        def loss(w: Params, batch: Batch) -> Tensor:
            return masked_loss(self.task, self.layout.scale(w, 1 / down["width"]) if hp.scaler else w, batch, here)

        return loss


def _on(kept: Tensor, size: int) -> Tensor:
    return torch.zeros(size).index_fill(0, kept, 1.0)
