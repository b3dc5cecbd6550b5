"""FTRL: follow the regularised leader (thesis, Eq. 5.2), the reference of convex online learning."""

from typing import Any

import torch
from pydantic import Field

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree, zeros_like
from hedgerow.algorithms.online.online_algorithm import Online, OnlineSGD
from hedgerow.algorithms.optim.local_sgd import Proximal, minimize


class FTRL(Online):
    """Minimises mu/2 ||w||^2 plus the sum of F over all tasks so far; every task is kept [Acar2023]."""

    class Hyper(OnlineSGD):
        weight_decay: float = Field(0.0, ge=0, description="L2 penalty, added to the direction after clipping")
        mu: float = Field(1.0, ge=0, description="weight of the regulariser; 0 is FTL, follow the leader")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        # The objective is divided by the number of tasks, because mini-batches give the mean over tasks.
        weight = torch.tensor(self.hyper.mu / cohort.round)
        result = yield self.learn({"w": server["w"], "weight": weight}, cohort, range(cohort.round))
        return result.up

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        proximal = Proximal(down["weight"], zeros_like(down["w"]))
        w, loss = minimize(self.objective(hp), down["w"], data, hp, proximal=proximal)
        return {"w": w}, state, {"loss": loss}

    def kept(self, server: Tree, cohort: Cohort) -> int:
        return cohort.round
