"""FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017)."""

from typing import Any

from hedgerow import Algorithm, ClientData, Cohort, Exchange, Exchanges, LocalSolver, StepResult, Tree, minimize


class FedAvg(Algorithm):
    """Clients run local SGD from the server's model; the server averages them by samples [McMahan2017, Alg. 1]."""

    class Hyper(LocalSolver):
        """Hyperparameters of the local solver."""

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        batches, weights = self.hyper.batches, self.weights(cohort)
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=batches, weights=weights)
        return {"w": result.up["w"]}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return StepResult({"w": w}, state, {"loss": loss}, w)
