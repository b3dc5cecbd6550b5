"""Clients of different capacities: who has which, what they lose, and how the parts that they return are averaged.

What a capacity is a share of, the methods say: of channels (`partial_training`), or of weights (`sparse_training`).
"""

from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Literal
from zlib import crc32

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.aggregators.masked_mean import masked_mean
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import add
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.nn.submodel import Layout, NoSubModelsError
from hedgerow.algorithms.optim.local_sgd import LocalOptimizer

Capacity = Annotated[float, Field(gt=0, le=1)]


CAPACITIES = [1.0, 0.5, 0.25, 0.125, 0.0625]
"""Those of HeteroFL, and of all who compare with it."""


class Heterogeneous(LocalOptimizer):
    """Hyperparameters of all whose clients differ in capacity."""

    capacities: list[Capacity] = Field(CAPACITIES, min_length=1, description="a client has one, drawn uniformly")
    redraw: bool = Field(True, description="draw the clients' capacities anew in every round; else once")
    masked_loss: bool = Field(
        True,
        description="logits of classes that a client has no samples of, among the round's mini-batches, are 0 in its "
        "loss, and it leaves these classes alone",
    )
    average: Literal["holders", "all"] = Field(
        "holders", description="over whom a parameter's moves are averaged: those who trained it, or all of the round"
    )
    server_lr: float = Field(1.0, gt=0, description="the server's step along that average")


class ByLayers(Algorithm):
    """An algorithm that knows the layers of its model."""

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        # A compiled step cannot find it out.
        with suppress(NoSubModelsError):
            _ = self.layout

    @cached_property
    def layout(self) -> Layout:
        """Raises NoSubModelsError."""
        return Layout.of(self.task)


def by_capacity(cohort: Cohort, capacities: list[float], redraw: bool) -> list[tuple[float, np.ndarray]]:
    """The round's clients by capacity: (capacity, clients), of those capacities that somebody has.

    They are drawn uniformly, so a capacity that is named twice has twice the clients; anew in every round, or once.
    """
    if redraw:
        rng = np.random.default_rng(cohort.seed_for("capacities"))
        # Of all who were sampled, so that a client's capacity does not depend on who is lost.
        drawn = rng.integers(len(capacities), size=len(cohort.sampled_clients))[
            np.isin(cohort.sampled_clients, cohort.clients)
        ]
    else:
        rng = np.random.default_rng([cohort.seed, crc32(b"capacities")])
        drawn = rng.integers(len(capacities), size=cohort.population)[cohort.clients]
    has = np.array(capacities)[drawn]
    parts = [(capacity, cohort.clients[has == capacity]) for capacity in dict.fromkeys(capacities)]
    return [(capacity, clients) for capacity, clients in parts if len(clients)]


def averaged(hyper: Heterogeneous, w: Params, moves: Params, holders: Params, sampled_clients: float) -> Params:
    """w, moved by the mean of the clients' moves. moves: their sum; holders: how many of `everybody` trained what."""
    if hyper.average == "all":
        return add(w, moves, hyper.server_lr / sampled_clients) if sampled_clients else w
    # Where nobody trained, nothing moved.
    return add(w, masked_mean(moves, moves, holders), hyper.server_lr)


def masked_loss(task: Any, w: Params, batch: Batch, here: Tensor | None) -> Tensor:
    """The loss where the logits of classes that are not here are 0 (HeteroFL, section 3)."""
    logits = task.logits(w, batch.x)
    return task.criterion(logits if here is None else logits * here, batch)


def classes_of(data: ClientData, classes: int) -> Tensor:
    """(classes,): 1 for those that the client's mini-batches have samples of, else 0."""
    rows, real = data.streams["train"]
    found = (data.y[rows][..., None] == torch.arange(classes, device=data.y.device)) & real[..., None]
    return found.flatten(0, -2).any(0).float()
