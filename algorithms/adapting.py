"""Algorithms that learn, and are scored, through an adaptation: f(U(w)) in the place of f(w)."""

from typing import Any

import numpy as np
import torch

from hedgerow.algorithms.base import SCORED, Algorithm, Batch, Batches, ClientData, Cohort, Exchange, Exchanges
from hedgerow.algorithms.local import Loss
from hedgerow.algorithms.meta import adapted, head, meta_loss
from hedgerow.algorithms.task import Params, trainable
from hedgerow.algorithms.trees import Tree


class Adapting(Algorithm):
    """Its hyperparameters are an Adaptation."""

    def objective(self, hp: Any) -> Loss:
        return lambda w, batch: meta_loss(self.task, w, batch, hp)

    def objection(self) -> str | None:
        hyper = self.hyper
        if self.task.is_static:
            return (
                f"task.model: {hyper.name} cannot adapt a model that normalises by statistics of all clients' samples; "
                "choose another, such as resnet18_gn"
            )
        if hyper.adapt == "proto" and hyper.proto_layer == "features" and head(self.task.module) is None:
            return (
                "algorithm.proto_layer: features needs a model that is a torch.nn.Sequential and ends in a linear "
                "layer; set it to output"
            )
        if hyper.adapt == "proto" and hyper.proto_layer == "features":
            last = f"{len(self.task.module) - 1}."  # type: ignore[arg-type]
            if all(name.startswith(last) for name in trainable(self.task.module)):
                return (
                    "algorithm.proto_layer: features does not train the last layer, and all other parameters of this "
                    "model are frozen (requires_grad=False); set it to output"
                )
        return None

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Score U(w) on what the cohort holds out; returns an empty Result for the shared test set."""
        batches = {"support": Batches(shuffle=False), "test": Batches(SCORED, shuffle=False, share="held_out")}
        down = {"w": self.evaluate_params(server)}
        nothing = Exchange(self.score, {}, np.zeros(0, int))
        return (yield [nothing, Exchange(self.score, down, cohort.clients, batches=batches)])

    def score(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step of evaluation: adapted to all of its training samples, scored on its test samples."""
        totals = self.tally(hp, down["w"], data, next(data.batches("support"), None))
        return {}, state, {"loss": totals[0], "correct": totals[1], "samples": totals[2]}

    def tally(self, hp: Any, w: Params, data: ClientData, support: Batch | None) -> torch.Tensor:
        """Summed loss, correct predictions and number of the test samples, (3,)."""
        predictor, u = adapted(self.task, w, support, hp)
        totals = torch.zeros(3, device=data.x.device)
        for batch in data.batches("test"):
            totals = totals + predictor.score(u, batch)
        return totals
