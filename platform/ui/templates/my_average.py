"""MyAverage: an algorithm of your own, to begin with.

`algorithm: {name: my_average.MyAverage, lr: 0.1}` in an experiment file runs it, from the folder that holds this file.
"""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import MODEL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, sub
from hedgerow.algorithms.optim.local_sgd import LocalSGD, minimize


class MyAverage(Algorithm):
    """FedAvg whose server goes only a part of the way from its model to the mean of the clients' models."""

    # The client step shows each client's own model, under MODEL, for `evaluation.model: clients`.
    has_client_models = True

    class Hyper(LocalSGD):
        """Its section of the experiment file: with what LocalSGD has, such as lr, epochs and batch_size."""

        server_lr: float = Field(1.0, gt=0, description="how far the server goes, as a share of the way; 1 is FedAvg")

    def init_server(self) -> Tree:
        """What the server has before round 1; `w` is the model. Checkpoints save it."""
        return {"w": self.task.init()}

    def init_client(self) -> Tree:
        """What a client keeps from round to round, by name; nothing here. Checkpoints save it."""
        return {}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        """The server's half: every `yield` is a broadcast, the clients' work, and the mean of their answers."""
        result = yield Exchange(
            self.train,
            broadcast={"w": server["w"]},
            clients=cohort.clients,
            batches=self.hyper.batches,
        )
        moved = sub(result.up["w"], server["w"])
        return {"w": add(server["w"], moved, self.hyper.server_lr)}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """The client's half, for one client: what it sends, what it keeps, and what is recorded of it.

        It runs in a loop over clients, or for many at once by torch.func.vmap: it never calls .item(), never branches
        on a tensor, and draws nothing from a global random generator.
        """
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return {"w": w}, state, {"loss": loss, MODEL: w}
