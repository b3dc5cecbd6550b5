"""FOCUS (Chen et al., "FOCUS: Dealing with Label Quality Disparity in Federated Learning", 2020)."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import MODEL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import Parts
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize

EVERYTHING = BatchSpec(200, shuffle=False)
HOPELESS = 1e30
VALIDATION = replace(EVERYTHING, split="validation")


class Focus(FedAvg):
    """FedAvg whose clients weigh as much as they are believed.

    Client m's error E_m is the loss of the server's model on its samples plus that of its own model on the server's
    samples for validation, the pool of all clients'. Its weight is its number of samples times
    1 - exp(alpha E_m) / sum_i exp(alpha E_i). A loss per client is transmitted beside the model.
    """

    needs_validation = True
    parts: ClassVar[Parts] = {}
    training_steps = ()

    class Hyper(FedAvg.Hyper):
        alpha: float = Field(1.0, ge=0, description="how much errors count; 0 is FedAvg")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        batches = {**self.hyper.batches, "all": EVERYTHING}
        found = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=batches, reduce="stack")
        judged = yield Exchange(self.judge, found.up["w"], np.zeros(1, int), batches={"all": VALIDATION}, on="pool")
        errors = found.up["error"].double() + judged.up["errors"].double()
        weights = torch.from_numpy(cohort.sizes[found.contributed]) * credibilities(errors, self.hyper.alpha)
        mean = tree_map(lambda leaf: torch.tensordot((weights / weights.sum()).to(leaf), leaf, 1), found.up["w"])
        return {"w": mean}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        error = self.mean_loss(down["w"], data)
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return {"w": w, "error": error}, state, {"loss": loss, MODEL: w}

    def judge(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """On the server: the loss of each client's model."""
        several = range(len(next(iter(down.values()))))
        errors = [self.mean_loss(tree_map(lambda leaf, i=i: leaf[i], down), data) for i in several]
        # A model that fails here is not believed; the others are judged all the same.
        return {"errors": torch.stack(errors).nan_to_num(HOPELESS, HOPELESS)}, state, {}

    def mean_loss(self, w: Tree, data: ClientData) -> torch.Tensor:
        """Over all samples."""
        totals = torch.zeros(3, device=data.x.device)
        for batch in data.batches("all"):
            totals = totals + self.task.score(w, batch)
        return totals[0] / totals[2]


def credibilities(errors: torch.Tensor, alpha: float) -> torch.Tensor:
    """C_m = 1 - softmax(alpha E)_m; of a single client 1. errors (clients,)."""
    return 1 - torch.softmax(alpha * errors, 0) if len(errors) > 1 else torch.ones_like(errors)
