"""Client capacities: their assignment to clients, the masked loss, and the mean of the parts that clients return.

Each method defines what a capacity is a share of: channels (`partial_training`) or weights (`sparse_training`).
"""

from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal
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
"""Capacities of HeteroFL and of the methods that compare with it."""


class Heterogeneous(LocalOptimizer):
    """Hyperparameters of algorithms whose clients differ in capacity."""

    capacities: list[Capacity] = Field(
        CAPACITIES, min_length=1, description="capacities; each client has one, drawn uniformly"
    )
    redraw: bool = Field(True, description="draw the clients' capacities anew in every round; false: once")
    masked_loss: bool = Field(
        True,
        description="in a client's loss, set the logits of classes without samples in its mini-batches of the "
        "round to 0, and do not update these classes",
    )
    average: Literal["holders", "all"] = Field(
        "holders",
        description="clients over which the updates of a parameter are averaged; holders: those that trained it; "
        "all: all of the round",
    )
    server_lr: float = Field(1.0, gt=0, description="server step size along that average")


class ByLayers(Algorithm):
    """Base class of algorithms that know the layers of their model."""

    needs = frozenset({"classes"})

    computed: ClassVar[tuple[str, ...]] = ("layout",)
    """Properties that are computed at construction, because a compiled step cannot compute them."""

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        with suppress(NoSubModelsError):
            for name in self.computed:
                getattr(self, name)

    @cached_property
    def layout(self) -> Layout:
        """Layout of the task's model. Raises NoSubModelsError."""
        return Layout.of(self.task)


def by_capacity(cohort: Cohort, capacities: list[float], redraw: bool) -> list[tuple[float, np.ndarray]]:
    """Groups the round's clients by capacity: (capacity, clients), for each capacity that has clients.

    Capacities are drawn uniformly, in every round or once, so a capacity that is listed twice has twice the clients.
    """
    if redraw:
        rng = np.random.default_rng(cohort.seed_for("capacities"))
        # Drawn for all sampled clients, so that a client's capacity does not depend on dropouts.
        indices = rng.integers(len(capacities), size=len(cohort.sampled_clients))[
            np.isin(cohort.sampled_clients, cohort.clients)
        ]
    else:
        rng = np.random.default_rng([cohort.seed, crc32(b"capacities")])
        indices = rng.integers(len(capacities), size=cohort.population)[cohort.clients]
    assignment = np.array(capacities)[indices]
    parts = [(capacity, cohort.clients[assignment == capacity]) for capacity in dict.fromkeys(capacities)]
    return [(capacity, clients) for capacity, clients in parts if len(clients)]


def averaged(hyper: Heterogeneous, w: Params, moves: Params, holders: Params, sampled_clients: float) -> Params:
    """w after a server step along the mean of the clients' updates.

    moves: sum of the updates. holders: number (or weight) of the clients that trained each parameter. sampled_clients:
    number (or weight) of all clients.
    """
    if hyper.average == "all":
        return add(w, moves, hyper.server_lr / sampled_clients) if sampled_clients else w
    # A parameter that no client trained has an update of 0.
    return add(w, masked_mean(moves, moves, holders), hyper.server_lr)


def masked_loss(task: Any, w: Params, batch: Batch, here: Tensor | None) -> Tensor:
    """Loss with logits of absent classes set to 0 (HeteroFL, section 3). here: 1 for present classes; None: all."""
    logits = task.logits(w, batch.x)
    return task.criterion(logits if here is None else logits * here, batch)


def classes_of(data: ClientData, classes: int) -> Tensor:
    """Mask of the classes that occur in the client's mini-batches, (classes,): 1 for these, else 0."""
    rows, real = data.streams["train"]
    matches = (data.y[rows][..., None] == torch.arange(classes, device=data.y.device)) & real.to(rows.device)[..., None]
    return matches.flatten(0, -2).any(0).float()
