"""MyAverage: an algorithm of your own to start from.

`algorithm: {name: my_average.MyAverage, lr: 0.1}` in an experiment file runs it, from the folder of this file.
"""

from typing import Any

from pydantic import Field

from hedgerow import Algorithm, ClientData, Cohort, Exchange, Exchanges, LocalSGD, StepResult, Tree, add, minimize, sub


class MyAverage(Algorithm):
    """FedAvg whose server moves only part of the way from its model to the mean of the clients' models."""

    class Hyper(LocalSGD):
        """Section of the experiment file: keys of LocalSGD, such as lr, epochs and batch_size, and those below."""

        server_lr: float = Field(1.0, gt=0, description="share of the way that the server moves; 1 is FedAvg")

    def init_server(self) -> Tree:
        """Server state before round 1; `w` is the model. Checkpoints save it."""
        return {"w": self.task.init()}

    def init_client(self) -> Tree:
        """Client state that persists between rounds, by name; empty here. Checkpoints save it."""
        return {}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Server side: every `yield` broadcasts, runs the clients, and returns the mean of their answers by samples."""
        result = yield Exchange(
            self.train,
            broadcast={"w": server["w"]},
            clients=cohort.clients,
            batches=self.hyper.batches,
            weights=self.weights(cohort),
        )
        step = sub(result.up["w"], server["w"])
        return {"w": add(server["w"], step, self.hyper.server_lr)}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        """Client side, for one client: returns its answer, its new state, its metrics, and its own model.

        This runs in a loop over clients, or for many at once under torch.func.vmap. It must not call .item(), branch on
        a tensor, or draw from a global random generator.
        """
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return StepResult({"w": w}, state, {"loss": loss}, w)
