"""MOML with a linear term of 0 (thesis, Algorithm 11)."""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, scale
from hedgerow.algorithms.online.online_algorithm import Online, OnlineSGD
from hedgerow.algorithms.optim.local_sgd import Proximal, minimize


class MOMLZero(Online):
    """MOML without its linear term, so only the running summary remains (the ablation of table A.10) [Acar2023]."""

    class Hyper(OnlineSGD):
        alpha: float = Field(1.0, gt=0, description="weight of the quadratic penalty")

    def init_server(self) -> Tree:
        return {"w": self.task.init(), "v": self.task.init()}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self.learn(server, cohort)
        w = result.up["w"]
        return {"w": w, "v": scale(add(server["v"], w), 0.5)}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        proximal = Proximal(hp.alpha, down["v"])
        w, loss = minimize(self.objective(hp), down["w"], data, hp, proximal=proximal)
        return {"w": w}, state, {"loss": loss}
