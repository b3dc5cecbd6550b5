"""FedAvg (McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017)."""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import MODEL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.objectives.side import Sided, WithSide
from hedgerow.algorithms.optim.local_sgd import LocalSolver
from hedgerow.algorithms.optim.server_optimizer import ServerStep


class FedAvg(Sided):
    """Each active client runs local SGD from the server's model; the server averages the results."""

    has_client_models = True

    class Hyper(WithSide, LocalSolver):
        weighting: Literal["uniform", "samples"] = Field(
            "uniform", description="weight of a client in the mean: equal, or its number of training samples"
        )
        server: ServerStep = ServerStep()

    def init_server(self) -> Tree:
        w = self.task.init()
        return {"w": w, "optimizer": self.hyper.server.init(w)}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield Exchange(
            self.train,
            down={"w": server["w"]},
            clients=cohort.clients,
            batches=self.hyper.batches,
            weights=self.weights(cohort),
        )
        w, optimizer = self.hyper.server.step(server["w"], result.up["w"], server["optimizer"])
        return {"w": w, "optimizer": optimizer}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, loss, side, told = self.learn(hp, down["w"], state, data)
        return {"w": w}, {**state, **side}, {"loss": loss, MODEL: w, **told}

    def weights(self, cohort: Cohort) -> np.ndarray | None:
        return cohort.sizes if self.hyper.weighting == "samples" else None
