"""FedDyn (Acar et al., "Federated Learning Based on Dynamic Regularization", 2021; thesis, Algorithm 1)."""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges, StepResult
from hedgerow.algorithms.core.pytree import Tree, add, scale, sub, zeros_like
from hedgerow.algorithms.optim.local_sgd import LocalSolver, Proximal, minimize


class FedDyn(Algorithm):
    """Regularises each client's objective anew in every round, so that its minimiser agrees with the global one
    [Acar2021].

    The client state g is the gradient of the client's loss at its latest model. The server state h is the mean of g
    over all clients. Neither is ever transmitted.
    """

    accumulates = refuses_server_momentum = True

    class Hyper(LocalSolver):
        alpha: float = Field(0.01, gt=0, description="weight of the quadratic penalty")

    def init_server(self) -> Tree:
        w = self.task.init()
        return {"w": w, "h": zeros_like(w)}

    def init_client(self) -> Tree:
        return {"g": zeros_like(self.task.init())}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        alpha = self.hyper.alpha
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        update = sub(result.up["w"], server["w"])
        h = add(server["h"], update, -alpha * result.clients / cohort.population)
        return {"w": add(result.up["w"], h, -1 / alpha), "h": h}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        centre = self.centre(hp, down, state)
        w, loss = minimize(self.task.loss, down["w"], data, hp, proximal=Proximal(hp.alpha, centre))
        return StepResult({"w": w}, self.gradient(hp, centre, w), {"loss": loss}, w)

    def centre(self, hp: Any, down: Tree, state: Tree) -> Tree:
        """Centre of the proximal term: -<g, w> + alpha/2 ||w - w_server||^2 = alpha/2 ||w - centre||^2 + a constant."""
        return add(down["w"], state["g"], 1 / hp.alpha)

    def remember(self, hp: Any, down: Tree, sent: Tree, state: Tree) -> Tree:
        return self.gradient(hp, self.centre(hp, down, state), sent["w"])

    def gradient(self, hp: Any, centre: Tree, w: Tree) -> Tree:
        """New g: at the minimum, the gradient of the loss is g - alpha (w - w_server) = alpha (centre - w)."""
        return {"g": scale(sub(centre, w), hp.alpha)}
