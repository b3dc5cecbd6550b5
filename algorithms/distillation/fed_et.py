"""Fed-ET (Cho, Manoel, Joshi, Sim, Dimitriadis, "Heterogeneous Ensemble Knowledge Transfer for Training Large Models in
Federated Learning", 2022, Algorithm 1).
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.aggregators.masked_mean import masked_mean
from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, scale, tree_map, zeros_like
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.distillation.feddf import FusedFamilies
from hedgerow.algorithms.heterogeneous.model_families import ModelFamilyHyper, Received
from hedgerow.algorithms.nn.submodel import OUTPUTS
from hedgerow.algorithms.objectives.distillation_loss import Distillation, consensus, dissent, divergence


class FedET(FusedFamilies):
    """Small client models teach a large server model, whose representation is sent back to the clients [Cho2022].

    The weight of a teacher is its confidence in a sample (the variance of its logits). The consensus of the ensemble is
    the sample's label. Teachers that disagree contribute a regulariser, which is omitted where all agree.

    The paper's models share one representation layer of the same size. Here small models are nested in the large one,
    and all layers except the last are their representation: the server averages the models that it receives, parameter
    by parameter over the clients that have it, distils, and returns its part to each prototype.
    """

    class Hyper(ModelFamilyHyper):
        diversity: float = Field(0.05, ge=0, description="lambda, weight of the teachers that disagree")
        distillation: Distillation = Distillation()

    def init_server(self) -> Tree:
        w = self.task.init()
        return {"w": w, **self.prototypes(w)}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        received = yield from self.gather(server, cohort)
        w = (yield from self.fused({"w": self.represented(server["w"], received)}, received))["w"]
        before = {**server, **{self.name(one.group.capacity): one.mean for one in received}}
        small = {name: self.headed(part, before[name]) for name, part in self.prototypes(w).items()}
        return {"w": w, **small}

    def represented(self, w: Params, received: list[Received]) -> Params:
        """Server model whose representation is the mean of the received models, where any of them has it."""
        total, holders = zeros_like(w), zeros_like(w)
        for one in received:
            channels = one.group.channels
            everywhere = tree_map(torch.ones_like, self.layout.part(w, channels))
            total = add(total, self.layout.whole(one.total, channels))
            holders = add(holders, scale(self.layout.whole(everywhere, channels), one.weights.sum()))
        return self.headed(masked_mean(w, total, holders), w)

    def headed(self, w: Params, other: Params) -> Params:
        """Representation of one model with the last layer of another."""
        return {name: other[name] if self.layout.axes[name][:1] == (OUTPUTS,) else p for name, p in w.items()}

    def targets(self, hp: Any, logits: Tensor) -> Tensor:
        """Returns (2, samples, classes): the one-hot consensus, and predictions that disagree."""
        labels = consensus(logits).argmax(-1)
        return torch.stack([F.one_hot(labels, logits.shape[-1]).to(logits.dtype), dissent(logits, labels)])

    def loss(self, hp: Any, logits: Tensor, batch: Batch) -> Tensor:
        agreed, dissenting = batch.y.unbind(0)
        return divergence(agreed, logits, batch) + hp.diversity * divergence(dissenting, logits, batch)
