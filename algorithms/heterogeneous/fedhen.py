"""FedHeN: federated learning in heterogeneous networks (thesis, chapter 4, Algorithm 4)."""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.heterogeneous.early_exits import TwoArchitectures, TwoExits


class FedHeN(TwoExits):
    """Complex clients also train the simple network, by a side objective: the loss of its exit (Eq. 4.2) [Acar2023]."""

    class Hyper(TwoArchitectures):
        side_weight: float = Field(1.0, ge=0, description="weight of the simple network's loss on complex clients")

    def train_complex(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        def loss(w: Params, batch: Batch) -> Tensor:
            early, late = self.logits(w, batch.x, "both")
            return self.task.criterion(late, batch) + hp.side_weight * self.task.criterion(early, batch)

        return self.learn(loss, hp, down, state, data, side=hp.side_weight)
