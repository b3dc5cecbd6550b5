"""FedDF (Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", 2020,
Algorithms 1 and 3).
"""

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges, Weighting
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.model_families import ModelFamilies, ModelFamilyHyper, Received
from hedgerow.algorithms.objectives.distillation_loss import (
    Distillation,
    distil,
    divergence,
    ensemble,
    soft_labels,
    taught,
)


class FusedFamilies(ModelFamilies):
    """Model families whose server distils what the clients return, on public samples, as `hyper.distillation` says.

    Subclasses define the targets and the loss of the students.
    """

    weighting: ClassVar[Weighting | None] = "samples"
    needs = ModelFamilies.needs | {"public"}

    @property
    def public_samples(self) -> int:
        return min(1, self.hyper.distillation.steps)

    @abstractmethod
    def targets(self, hp: Any, logits: Tensor) -> Tensor:
        """Targets of a mini-batch from the teachers' logits: (teachers, samples, classes)."""

    @abstractmethod
    def loss(self, hp: Any, logits: Tensor, batch: Batch) -> Tensor:
        """Loss of a student on a mini-batch with targets; 0-d."""

    def fused(self, students: Tree, received: list[Received]) -> Exchanges:
        """Students that have learnt from the received models."""
        if not self.hyper.distillation.steps:
            return students
        teachers = {self.name(one.group.capacity): one.models for one in received}
        down, batches = {"students": students, "teachers": teachers}, self.hyper.distillation.batches
        result = yield Exchange(self.fuse, down, POOL, batches=batches, site="pool")
        return result.up

    def fuse(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Distillation step of the server."""
        batches = taught(data.batches("public"), lambda x: self.targets(hp, ensemble(self.task, down["teachers"], x)))
        students, loss = distil(self.task, down["students"], data, hp.distillation, batches, partial(self.loss, hp))
        return students, state, {"distillation_loss": loss}


class FedDF(FusedFamilies):
    """Averages the models of each shape, and distils the mean logits of all models into each average [Lin2020].

    The number of steps and the learning rate are fixed. The paper takes up to 10^4 steps with a cosine learning rate,
    until the accuracy on labelled samples of the server stops improving; such samples are not available here. The worst
    models of a round are not dropped either. The scored model is the largest one.
    """

    class Hyper(ModelFamilyHyper):
        temperature: float = Field(
            1.0, gt=0, description="temperature of the teachers' and the students' probabilities"
        )
        distillation: Distillation = Distillation()

    def incompatibility(self) -> str | None:
        if max(self.hyper.capacities) < 1:
            return "algorithm.capacities: without 1 no client trains the scored model; add 1"
        return super().incompatibility()

    def name(self, capacity: float) -> str:
        return "w" if capacity == 1 else super().name(capacity)

    def init_server(self) -> Tree:
        return self.prototypes(self.task.init())

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        received = yield from self.gather(server, cohort)
        averages = {self.name(one.group.capacity): one.mean for one in received}
        return (yield from self.fused({**server, **averages}, received))

    def targets(self, hp: Any, logits: Tensor) -> Tensor:
        return soft_labels(logits.mean(0), hp.temperature)

    def loss(self, hp: Any, logits: Tensor, batch: Batch) -> Tensor:
        return divergence(batch.y, logits, batch, hp.temperature)
