"""FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017)."""

from typing import Any, ClassVar

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import MODEL, Cohort, Exchange, Exchanges, Weighting
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.optim.local_sgd import LOCAL, LocalSolver, minimize


class FedAvg(Algorithm):
    """Clients run local SGD from the server's model; the server averages them by samples [McMahan2017, Alg. 1]."""

    weighting: ClassVar[Weighting | None] = "samples"
    has_client_models = single_exchange = True
    parts: ClassVar[Parts] = {"train": {"w": Part("w", "value")}}
    training_steps: ClassVar[tuple[str, ...]] = ("train",)
    client_hyperparameters: ClassVar[tuple[str, ...]] = LOCAL
    optimizes = "w"

    class Hyper(LocalSolver):
        """Hyperparameters of the local solver."""

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        batches, weights = self.hyper.batches, self.weights(cohort)
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=batches, weights=weights)
        return {"w": result.up["w"]}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return {"w": w}, state, {"loss": loss, MODEL: w}
