"""Prototypes: clients of different capacities have models of different shapes, and no model is a part of another."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.heterogeneous.capacities import CAPACITIES, ByLayers, Capacity, by_capacity
from hedgerow.algorithms.heterogeneous.partial_training import CapacityGroup
from hedgerow.algorithms.nn.submodel import submodel_incompatibility
from hedgerow.algorithms.optim.local_sgd import LocalOptimizer, minimize


class ModelFamilyHyper(LocalOptimizer):
    """Hyperparameters of algorithms whose clients have models of different shapes."""

    capacities: list[Capacity] = Field(
        CAPACITIES,
        min_length=1,
        description="shares of each layer's channels in the clients' models; each client has one of them, drawn "
        "uniformly once",
    )


@dataclass(frozen=True)
class Received:
    """Models of one capacity that clients returned. models: a stack; weights: one per model."""

    group: CapacityGroup
    models: Params
    weights: Tensor

    @property
    def total(self) -> Params:
        """Weighted sum of the models."""
        return tree_map(lambda leaf: torch.tensordot(self.weights, leaf, 1), self.models)

    @property
    def mean(self) -> Params:
        return tree_map(lambda leaf: leaf / self.weights.sum(), self.total)


class ModelFamilies(ByLayers):
    """Base class of algorithms whose clients train models of their own capacity.

    A model of capacity r has the first r of each layer's channels of the task's model, and their initial parameters.
    """

    def incompatibility(self) -> str | None:
        return submodel_incompatibility(self.task, self.hyper.name)

    def groups(self, cohort: Cohort) -> list[CapacityGroup]:
        """Clients of the round, grouped by capacity."""
        assignment = by_capacity(cohort, self.hyper.capacities, redraw=False)
        return [CapacityGroup(capacity, clients, self.layout.nested(capacity)) for capacity, clients in assignment]

    def name(self, capacity: float) -> str:
        """Key of a capacity's prototype in the server state."""
        return f"w_{capacity:g}"

    def prototypes(self, w: Params) -> Tree:
        """Prototype of each capacity, cut out of a model."""
        return {self.name(capacity): self.layout.part(w, self.layout.nested(capacity)) for capacity in self.capacities}

    @property
    def capacities(self) -> list[float]:
        return list(dict.fromkeys(self.hyper.capacities))

    def gather(self, server: Tree, cohort: Cohort) -> Generator[list[Exchange], Any, list[Received]]:
        """Trains the prototypes on the clients; returns the models of each capacity."""
        groups = self.groups(cohort)
        results = yield [
            Exchange(
                self.train,
                {"w": server[self.name(group.capacity)]},
                group.clients,
                batches=self.hyper.batches,
                reduce="stack",
            )
            for group in groups
        ]
        return [
            Received(group, result.up["w"], self.weights_of(group.clients[result.contributed], cohort))
            for group, result in zip(groups, results, strict=True)
            if result.contributed.any()
        ]

    def weights_of(self, clients: np.ndarray, cohort: Cohort) -> Tensor:
        """Weights of some of the cohort's clients."""
        weights = self.weights(cohort)
        every = np.ones(len(cohort.clients)) if weights is None else weights
        return torch.from_numpy(every[np.searchsorted(cohort.clients, clients)]).float()

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return {"w": w}, state, {"loss": loss}
