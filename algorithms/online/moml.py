"""MOML: memory-efficient online meta-learning (thesis, Algorithm 6)."""

from typing import Any, Literal

from pydantic import Field

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, scale, sub, zeros_like
from hedgerow.algorithms.online.online_algorithm import Online, OnlineSGD
from hedgerow.algorithms.optim.local_sgd import Proximal, minimize


class MOML(Online):
    """Represents all past tasks by two vectors: lam, the gradient at the latest model, and v, a running summary
    [Acar2023].

    Each task is learnt with the regulariser -<lam, z> + alpha/2 ||z - v||^2.
    """

    class Hyper(OnlineSGD):
        alpha: float = Field(1.0, gt=0, description="weight of the quadratic penalty")
        state_update: Literal["linear", "exact"] = Field(
            "linear",
            description="source of lam; linear: the stationarity condition of the regularised loss (lam then "
            "includes the gradient of weight_decay); exact: one more pass over the task",
        )

    def init_server(self) -> Tree:
        w = self.task.init()
        return {"w": w, "v": self.task.init(), "lam": zeros_like(w)}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        alpha = self.hyper.alpha
        result = yield self.learn(server, cohort)
        w = result.up["w"]
        lam = add(server["lam"], sub(w, server["v"]), -alpha)
        if self.hyper.state_update == "exact":
            result = yield self.look(w, cohort)
            lam = result.up["gradient"]
        v = scale(add(add(server["v"], w), lam, -1 / alpha), 0.5)
        return {"w": w, "v": v, "lam": lam}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        linear, proximal = scale(down["lam"], -1), Proximal(hp.alpha, down["v"])
        w, loss = minimize(self.objective(hp), down["w"], data, hp, linear, proximal)
        return {"w": w}, state, {"loss": loss}
