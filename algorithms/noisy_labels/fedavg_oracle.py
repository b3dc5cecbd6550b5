"""FedAvg on the samples with right labels, which only an oracle knows (Li, Pei, Huang, 2022, section 6)."""

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges, StepResult
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize
from hedgerow.algorithms.problems.cleaning import NEEDED, Cleaning, only


class FedAvgOracle(FedAvg):
    """FedAvg whose losses average only samples with right labels; their number is the weight of a client [Li2022]."""

    needs = frozenset({"classes", "cleaning"})
    weighting = "own"
    parts: ClassVar[Parts] = {"train": {"w": Part("w", "value")}}
    training_steps = ()
    single_exchange = True

    task: Cleaning

    def incompatibility(self) -> str | None:
        return None if isinstance(self.task, Cleaning) else NEEDED.format("fedavg_oracle")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield Exchange(
            self.train,
            {"w": server["w"]},
            cohort.clients,
            batches=self.hyper.batches,
            weights=self.right_labels(cohort),
        )
        return {"w": result.up["w"]}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        right = ~self.task.wrong

        def loss(w: Tree, batch: Batch) -> Tensor:
            return self.task.loss(w, only(batch, right[self.task.slots[batch.rows]]))

        w, value = minimize(loss, down["w"], data, hp)
        return StepResult({"w": w}, state, {"loss": value}, w)

    def right_labels(self, cohort: Cohort) -> np.ndarray | None:
        """Number of samples with right labels of each client; None if there are none."""
        # Blocks are padded with the index past the last sample, which counts as no sample.
        right = torch.cat([~self.task.wrong, torch.zeros(1, dtype=torch.bool)])
        counts = right[self.task.blocks[cohort.clients]].sum(1).numpy()
        return counts if counts.any() else None
