"""FedAvg on the samples whose labels are right, as only an oracle knows (Li, Pei, Huang, 2022, section 6)."""

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import MODEL, Cohort
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimise
from hedgerow.algorithms.problems.cleaning import NEEDED, Cleaning, only


class FedAvgOracle(FedAvg):
    """FedAvg where each mini-batch's loss is the mean over its samples with right labels."""

    needs_cleaning = True
    takes_side = False

    class Hyper(FedAvg.Hyper):
        weighting: Literal["uniform", "samples"] = Field(
            "samples", description="weight of a client in the mean: equal, or its number of samples with right labels"
        )

    task: Cleaning

    def incompatibility(self) -> str | None:
        return None if isinstance(self.task, Cleaning) else NEEDED.format("fedavg_oracle")

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        right = ~self.task.wrong

        def loss(w: Tree, batch: Batch) -> Tensor:
            return self.task.loss(w, only(batch, right[self.task.slots[batch.rows]]))

        w, value = minimise(loss, down["w"], data, hp)
        return {"w": w}, state, {"loss": value, MODEL: w}

    def weights(self, cohort: Cohort) -> np.ndarray | None:
        """By numbers of right labels, where FedAvg weighs by those of samples."""
        if self.hyper.weighting != "samples":
            return None
        # No sample stands past the last.
        right = torch.cat([~self.task.wrong, torch.zeros(1, dtype=torch.bool)])
        counts = right[self.task.blocks[cohort.clients]].sum(1).numpy()
        return counts if counts.any() else None
