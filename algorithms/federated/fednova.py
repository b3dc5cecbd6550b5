"""FedNova (Wang, Liu, Liang, Joshi, Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization", 2020).
"""

from typing import Any

import torch

from hedgerow import (
    Algorithm,
    ClientData,
    Cohort,
    Exchange,
    Exchanges,
    LocalSGD,
    StepResult,
    Tree,
    add,
    minimize,
    plain_steps,
    scale,
    sub,
)


class FedNova(Algorithm):
    """FedAvg with updates per local step, so that clients with more steps do not count more [Wang2020].

    Each update is divided by the number of the client's steps. The server multiplies the mean by the mean number of
    steps, which costs one number per client in addition to the model. Both means are weighted by the clients' numbers
    of samples. With local momentum, the number of steps is ||a||_1 of the paper.
    """

    class Hyper(LocalSGD):
        """Hyperparameters of the local solver."""

        assumes_sgd = "updates are divided by the number of SGD steps"

    def init_server(self) -> Tree:
        return {"w": self.task.init(), "steps": torch.zeros(())}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield Exchange(
            self.train, {"w": server["w"]}, cohort.clients, batches=self.hyper.batches, weights=self.weights(cohort)
        )
        steps = result.up["steps"]
        return {"w": add(server["w"], result.up["direction"], steps), "steps": steps}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        # A client without samples takes no step, and its update is 0.
        steps = plain_steps(hp, data.steps("train")).float()
        direction = scale(sub(w, down["w"]), 1 / steps.clamp(min=1.0))
        return StepResult({"direction": direction, "steps": steps}, state, {"loss": loss}, w)

    def round_metrics(self, server: Tree) -> dict[str, float]:
        """`effective_steps`: tau_eff of the paper, the mean number of local steps."""
        return {"effective_steps": float(server["steps"])}
