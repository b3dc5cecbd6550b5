"""FedProx (Li et al., "Federated Optimization in Heterogeneous Networks", 2020)."""

from typing import Any

from pydantic import Field

from hedgerow import ClientData, FedAvg, Proximal, StepResult, Tree, minimize


class FedProx(FedAvg):
    """FedAvg with the local objective L_k(w) + mu/2 ||w - w_server||^2 (thesis, chapter 2) [Li2020].

    Algorithm 2 of the paper draws clients in proportion to their samples and averages them equally. Here clients are
    drawn equally, so the mean is weighted by samples.
    """

    class Hyper(FedAvg.Hyper):
        mu: float = Field(1e-4, ge=0, description="weight of the proximal term; 0 is FedAvg")

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        w, loss = minimize(self.task.loss, down["w"], data, hp, proximal=Proximal(hp.mu, down["w"]))
        return StepResult({"w": w}, state, {"loss": loss}, w)
