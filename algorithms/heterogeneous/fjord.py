"""FjORD (Horvath et al., "FjORD: Fair and Accurate Federated Learning under Heterogeneous Targets with Ordered
Dropout", 2021), without its distillation.
"""

from dataclasses import replace
from itertools import count
from math import ceil
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Cohort, Exchange
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.heterogeneous.capacities import masked_loss
from hedgerow.algorithms.heterogeneous.heterofl import HeteroFL
from hedgerow.algorithms.heterogeneous.partial_training import CapacityGroup, PartialTrainingHyper


class FjORD(HeteroFL):
    """HeteroFL with ordered dropout: clients draw one of the capacities up to their own for each local step
    [Horvath2021].

    A step trains that share of each layer's first channels.
    """

    class Hyper(PartialTrainingHyper):
        scaler: bool = Field(False, description="in training, divide a layer's output by the capacity of the step")

    def exchange(self, w: Params, group: CapacityGroup, cohort: Cohort) -> Exchange:
        exchange = super().exchange(w, group, cohort)
        train = self.hyper.batches["train"]
        passes = train.epochs * ceil(cohort.sizes.max() / (train.size or cohort.sizes.max()))
        shape = (len(group.clients), train.steps or passes)
        rng = np.random.default_rng([cohort.seed_for("widths"), int(1e6 * group.capacity)])
        widths = torch.from_numpy(rng.choice(self._smaller(group), shape)).float()
        return replace(exchange, local_inputs_per_client={"widths": widths})

    def macs(self, group: CapacityGroup) -> float:
        """Multiply-adds of one sample, averaged over the capacities of a step."""
        return float(np.mean([self.layout.macs(self.layout.counts(width)) for width in self._smaller(group)]))

    def _smaller(self, group: CapacityGroup) -> list[float]:
        return [width for width in self.hyper.capacities if width <= group.capacity]

    def local_loss(self, hp: Any, down: Tree, here: Tensor | None) -> Any:
        steps = count()

        def loss(w: Params, batch: Batch) -> Tensor:
            width = down["widths"][next(steps)]
            on = {
                space: (torch.arange(number, device=width.device) < width * self.layout.sizes[space] - 1e-4).float()
                for space, number in self.layout.counted(w).items()
            }
            part = tree_map(torch.mul, w, self.layout.mask(on, inputs=False))
            return masked_loss(self.task, self.layout.scale(part, 1 / width) if hp.scaler else part, batch, here)

        return loss
