"""FOCUS (Chen et al., "FOCUS: Dealing with Label Quality Disparity in Federated Learning", 2020)."""

from dataclasses import replace
from typing import Any

import torch
from pydantic import Field

from hedgerow.algorithms.core.client_data import ONCE, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges, StepResult
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.optim.local_sgd import minimize

LARGEST_ERROR = 1e30
VALIDATION = replace(ONCE, split="validation")


class Focus(FedAvg):
    """FedAvg that weights clients by their credibility [Chen2020].

    The error E_m of client m is the loss of the server's model on the client's samples plus the loss of the client's
    model on the server's validation samples, the pool of all clients'. The weight of the client is its number of
    samples times 1 - exp(alpha E_m) / sum_i exp(alpha E_i). One loss per client is transmitted in addition to the
    model.
    """

    needs = frozenset({"classes", "validation"})
    training_steps = ()
    optimizes = "w"

    class Hyper(FedAvg.Hyper):
        alpha: float = Field(1.0, ge=0, description="how strongly errors reduce weights; 0 is FedAvg")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        batches = {**self.hyper.batches, "all": ONCE}
        result = yield Exchange(self.train, {"w": server["w"]}, cohort.clients, batches=batches, reduce="stack")
        verdict = yield Exchange(self.judge, result.up["w"], POOL, batches={"all": VALIDATION}, site="pool")
        errors = result.up["error"].double() + verdict.up["errors"].double()
        weights = torch.from_numpy(cohort.sizes[result.contributed]) * credibilities(errors, self.hyper.alpha)
        mean = tree_map(lambda leaf: torch.tensordot((weights / weights.sum()).to(leaf), leaf, 1), result.up["w"])
        return {"w": mean}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> StepResult:
        error = self.mean_loss(down["w"], data)
        w, loss = minimize(self.task.loss, down["w"], data, hp)
        return StepResult({"w": w, "error": error}, state, {"loss": loss}, w)

    def judge(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Server step: the loss of each client's model."""
        several = range(len(next(iter(down.values()))))
        errors = [self.mean_loss(tree_map(lambda leaf, i=i: leaf[i], down), data) for i in several]
        # A model with a non-finite loss gets the largest error; the others are judged as usual.
        return {"errors": torch.stack(errors).nan_to_num(LARGEST_ERROR, LARGEST_ERROR)}, state, {}

    def mean_loss(self, w: Tree, data: ClientData) -> torch.Tensor:
        """Mean loss over all samples."""
        scores = self.task.tally(lambda batch: self.task.score(w, batch), data, "all")
        return scores["loss"] / scores[self.task.scoring.count("loss")]


def credibilities(errors: torch.Tensor, alpha: float) -> torch.Tensor:
    """C_m = 1 - softmax(alpha E)_m; 1 for a single client. errors (clients,)."""
    return 1 - torch.softmax(alpha * errors, 0) if len(errors) > 1 else torch.ones_like(errors)
