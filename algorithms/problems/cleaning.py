"""Federated data cleaning: which training labels are wrong is learnt from clean samples for validation."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, cross_entropies, mean_over
from hedgerow.algorithms.problems.bilevel_task import BilevelTask

NEEDED = "task.problem.kind: {} is about training labels that may be wrong; set it to cleaning"
"""What an algorithm says that needs this problem."""


@dataclass(frozen=True)
class Cleaning(BilevelTask):
    """x: one number per training sample, which weighs it in the lower loss. y: the classifier.

    weights: "sigmoid": the number is the logit of the weight, which begins at 1/2; "clipped": it is the weight itself,
    which begins at 1 and is kept in [0, 1] (Comm-FedBiO).

    Where all clients share x and it is averaged, a sample's number moves by 1/M of what its owner moved it. Where x is
    handed out, each client has those of its own samples alone.

    blocks (clients, most samples that one has): where the numbers of each client's samples stand in x; one past the
    last where it has no more. slots, places (samples of the data set,): where a sample's number stands in x, and in
    its owner's block. wrong (training samples,): in the order of x, True where the label is wrong; only oracles see it.
    """

    deals_x = True

    weights: Literal["sigmoid", "clipped"] = "sigmoid"
    blocks: Tensor = field(kw_only=True)
    slots: Tensor = field(kw_only=True)
    places: Tensor = field(kw_only=True)
    wrong: Tensor = field(kw_only=True)

    def start(self) -> Tree:
        start = 0.0 if self.weights == "sigmoid" else 1.0
        return {"x": {"weights": torch.full((len(self.wrong),), start)}, "y": self.init()}

    def upper(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return self.loss(y, batch)

    def outputs(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return self.logits(y, batch.x)

    def fit(self, x: Tree, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean of weight times cross-entropy; weights are not normalised."""
        mine = x["own"][self.places[batch.rows]] if "own" in x else x["weights"][self.slots[batch.rows]]
        return mean_over(self.weigh(mine) * cross_entropies(outputs, batch.y), batch)

    def weigh(self, numbers: Tensor) -> Tensor:
        """The weights that numbers of x stand for."""
        return torch.sigmoid(numbers) if self.weights == "sigmoid" else numbers

    def project(self, x: Tree) -> Tree:
        return x if self.weights == "sigmoid" else {"weights": x["weights"].clamp(0.0, 1.0)}

    def hand_out(self, x: Tree, clients: np.ndarray) -> Tree:
        """To each client the block of its own samples, {"own": (clients, most samples)}."""
        return {"own": torch.cat([x["weights"], x["weights"].new_zeros(1)])[self.blocks[clients]]}

    def padding(self, clients: np.ndarray) -> np.ndarray:
        return (self.blocks[clients] == len(self.wrong)).sum(1).numpy()

    def collect(self, slopes: Tree, clients: np.ndarray, weights: Tensor) -> Tree:
        own = weights[:, None].to(slopes["own"]) * slopes["own"]
        whole = own.new_zeros(len(self.wrong) + 1)
        whole[self.blocks[clients].flatten()] = own.flatten()
        return {"weights": whole[:-1]}

    def params(self, x: Tree, y: Tree) -> Params:
        return y

    def report(self, x: Tree, y: Tree | None, ridge: float) -> dict[str, float]:
        """How well low weights tell wrong labels: see `detection`."""
        return detection(self.weigh(x["weights"].cpu()), self.wrong.cpu())

    def histograms(self, x: Tree) -> dict[str, dict[str, Tensor]]:
        """The weights of samples with right and with wrong labels."""
        weights, wrong = self.weigh(x["weights"].cpu()), self.wrong.cpu()
        return {"sample weight": {"right label": weights[~wrong], "wrong label": weights[wrong]}}


def detection(weights: Tensor, wrong: Tensor) -> dict[str, Any]:
    """How well low weights tell wrong labels. weights, wrong: (samples,).

    `cleaning_precision`, `cleaning_recall` and `cleaning_f1`: of taking those below 1/2 for wrong; 0 where none is, of
    the precision too. `cleaning_auc`: the chance that a wrong label has the lower weight of two, a wrong and a right
    one, where ties count half. Nothing where all labels are right, or all wrong.
    """
    bad, good = int(wrong.sum()), int((~wrong).sum())
    if not bad or not good:
        return {}
    flagged = weights < 0.5
    hits = int((flagged & wrong).sum())
    _, inverse, counts = torch.unique(weights, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[inverse]
    below = float(ranks[~wrong].double().sum()) - good * (good + 1) / 2
    return found_of(hits, int(flagged.sum()), bad) | {"cleaning_auc": below / (good * bad)}


def found_of(hits: int, flagged: int, bad: int) -> dict[str, float]:
    """Precision, recall and F1. hits: wrong labels that are flagged; bad: all wrong labels."""
    return {
        "cleaning_precision": hits / max(flagged, 1),
        "cleaning_recall": hits / max(bad, 1),
        "cleaning_f1": 2 * hits / max(flagged + bad, 1),
    }


def only(batch: Batch, which: Tensor) -> Batch:
    """A batch without its other samples. which (samples,): bool."""
    return replace(batch, mask=which.float() if batch.mask is None else batch.mask * which)
