"""FedDF (Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", 2020,
Algorithms 1 and 3).
"""

from typing import Any, ClassVar

from pydantic import Field

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges, Weighting
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.model_families import ModelFamilies, ModelFamilyHyper
from hedgerow.algorithms.objectives.distillation_loss import (
    Distillation,
    distil,
    divergence,
    ensemble,
    soft_labels,
    taught,
)


class FedDF(ModelFamilies):
    """Averages the models of each shape, and distils the mean logits of all models into each average [Lin2020].

    The number of steps and the learning rate are fixed. The paper takes up to 10^4 steps with a cosine learning rate,
    until the accuracy on labelled samples of the server stops improving; such samples are not available here. The worst
    models of a round are not dropped either. The scored model is the largest one.
    """

    weighting: ClassVar[Weighting | None] = "samples"
    needs = ModelFamilies.needs | {"public"}

    class Hyper(ModelFamilyHyper):
        temperature: float = Field(
            1.0, gt=0, description="temperature of the teachers' and the students' probabilities"
        )
        distillation: Distillation = Distillation()

    @property
    def public_samples(self) -> int:
        return min(1, self.hyper.distillation.steps)

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
        students = {**server, **{self.name(one.group.capacity): one.mean for one in received}}
        if not self.hyper.distillation.steps:
            return students
        teachers = {self.name(one.group.capacity): one.models for one in received}
        result = yield Exchange(
            self.fuse,
            {"students": students, "teachers": teachers},
            POOL,
            batches=self.hyper.distillation.batches,
            site="pool",
        )
        return result.up

    def fuse(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Distillation step of the server."""
        batches = taught(
            data.batches("public"),
            lambda x: soft_labels(ensemble(self.task, down["teachers"], x).mean(0), hp.temperature),
        )
        students, loss = distil(
            self.task,
            down["students"],
            data,
            hp.distillation,
            batches,
            lambda logits, batch: divergence(batch.y, logits, batch, hp.temperature),
        )
        return students, state, {"distillation_loss": loss}
