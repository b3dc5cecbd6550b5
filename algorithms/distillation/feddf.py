"""FedDF (Lin, Kong, Stich, Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", 2020,
Algorithms 1 and 3).
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.model_families import FusedFamilies, ModelFamilyHyper
from hedgerow.algorithms.objectives.distillation_loss import Distillation, divergence, soft_labels


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
