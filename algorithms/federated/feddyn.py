"""FedDyn (Acar et al., "Federated Learning Based on Dynamic Regularization", 2021; thesis, Algorithm 1)."""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import MODEL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, scale, sub, zeros_like
from hedgerow.algorithms.objectives.side import Sided, WithSide
from hedgerow.algorithms.optim.local_sgd import LocalSolver, Proximal


class FedDyn(Sided):
    """Each client's objective is regularised anew every round, so that its minimiser agrees with the global one.

    g, a client's state, is the gradient of its loss at its latest model; h, the server's, is their mean over all
    clients. Neither is ever transmitted.
    """

    has_client_models = True

    class Hyper(WithSide, LocalSolver):
        alpha: float = Field(0.01, gt=0, description="weight of the quadratic penalty")

    def init_server(self) -> Tree:
        w = self.task.init()
        return {"w": w, "h": zeros_like(w)}

    def init_client(self) -> Tree:
        return {"g": zeros_like(self.task.init()), **super().init_client()}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        alpha = self.hyper.alpha
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        moved = sub(result.up["w"], server["w"])
        h = add(server["h"], moved, -alpha * int(result.kept.sum()) / cohort.population)
        return {"w": add(result.up["w"], h, -1 / alpha), "h": h}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        # -<g, w> + alpha/2 ||w - w_server||^2 with its square completed. At the minimum the loss's gradient is what
        # remains of g: g - alpha (w - w_server) = alpha (centre - w).
        centre = add(down["w"], state["g"], 1 / hp.alpha)
        w, loss, side, told = self.learn(hp, down["w"], state, data, proximal=Proximal(hp.alpha, centre))
        g = scale(sub(centre, w), hp.alpha)
        return {"w": w}, {"g": g, **side}, {"loss": loss, MODEL: w, **told}
