"""FedSplit (Pathak and Wainwright, 2020), adapted to partial participation as in the thesis, appendix A.1.1."""

from typing import Any, Literal

from pydantic import Field

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges, StepResult
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree, add, scale, sub, tree_map
from hedgerow.algorithms.optim.local_sgd import LocalSolver, Proximal, minimize


class FedSplit(Algorithm):
    """Peaceman-Rachford splitting: each client reflects the server's model at its own z and takes a proximal step
    [Pathak2020].

    The server's model is the mean of z over all clients, where inactive clients keep their z, or over the active
    clients only. Both are the same if all clients are active.
    """

    accumulates = True

    class Hyper(LocalSolver):
        step_size: float = Field(1.0, gt=0, description="s: the proximal term is 1/(2s) ||u - (2x - z)||^2")
        average: Literal["all", "active"] = Field("all", description="clients over which the server averages z")

    @property
    def parts(self) -> Parts:  # type: ignore[override]
        active = self.hyper.average == "active"
        return {"train": {"z": Part("w", "value")} if active else {"moved": Part("w", "difference")}}

    def init_client(self) -> Tree:
        return {"z": self.task.init()}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches)
        if self.hyper.average == "active":
            return {"w": result.up["z"]}
        return {"w": add(server["w"], result.up["moved"], result.clients / cohort.population)}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        reflection = tree_map(lambda x, z: 2 * x - z, down["w"], state["z"])
        penalty = Proximal(1 / hp.step_size, reflection)
        half, loss = minimize(self.task.loss, down["w"], data, hp, proximal=penalty)
        update = scale(sub(half, down["w"]), 2)
        z = add(state["z"], update)
        up = {"z": z} if hp.average == "active" else {"moved": update}
        return StepResult(up, {"z": z}, {"loss": loss}, half)

    def remember(self, hp: Any, down: Tree, sent: Tree, state: Tree) -> Tree:
        return {"z": sent["z"] if "z" in sent else add(state["z"], sent["moved"])}
