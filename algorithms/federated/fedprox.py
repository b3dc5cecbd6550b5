"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020)."""

from typing import Any, ClassVar

from pydantic import Field

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import MODEL
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import LOCAL, Proximal, minimize


class FedProx(FedAvg):
    """FedAvg with the local objective L_k(w) + mu/2 ||w - w_server||^2 (thesis, chapter 2) [Li2020].

    Algorithm 2 of the paper draws clients in proportion to their samples and averages them equally. Here clients are
    drawn equally, so the mean is weighted by samples.
    """

    client_hyperparameters: ClassVar[tuple[str, ...]] = (*LOCAL, "mu")

    class Hyper(FedAvg.Hyper):
        mu: float = Field(1e-4, ge=0, description="weight of the proximal term; 0 is FedAvg")

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, loss = minimize(self.task.loss, down["w"], data, hp, proximal=Proximal(hp.mu, down["w"]))
        return {"w": w}, state, {"loss": loss, MODEL: w}
