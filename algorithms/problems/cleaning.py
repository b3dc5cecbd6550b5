"""Federated data cleaning: detects wrong training labels with the help of clean validation samples."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.measures import cross_entropies
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, mean_over
from hedgerow.algorithms.problems.bilevel_task import BilevelTask

NEEDED = "task.problem.kind: {} requires data cleaning; set it to cleaning"
"""Error message of algorithms that need this problem."""


@dataclass(frozen=True)
class Cleaning(BilevelTask):
    """Data cleaning. x: one number per training sample, which weights it in the lower loss. y: the classifier.

    weights: "sigmoid": the number is the logit of the weight, which starts at 1/2; "clipped": the number is the weight
    itself, which starts at 1 and is kept in [0, 1] (Comm-FedBiO).

    If all clients share x and x is averaged, the number of a sample moves by 1/M of the change that its owner made. If
    x is handed out, each client has only the numbers of its own samples.

    blocks (clients, maximum number of samples): positions of the numbers of each client's samples in x; padding is one
    past the last position.
    slots, places (samples of the data set,): position of a sample's number in x, and in its owner's block.
    wrong (training samples,): in the order of x, True if the label is wrong; only oracles use it.
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
        """Mean of weight times cross-entropy; weights are not normalised."""
        numbers = x["own"][self.places[batch.rows]] if "own" in x else x["weights"][self.slots[batch.rows]]
        return mean_over(self.weigh(numbers) * cross_entropies(outputs, batch.y), batch)

    def weigh(self, numbers: Tensor) -> Tensor:
        """Converts numbers of x to weights."""
        return torch.sigmoid(numbers) if self.weights == "sigmoid" else numbers

    def project(self, x: Tree) -> Tree:
        return x if self.weights == "sigmoid" else {"weights": x["weights"].clamp(0.0, 1.0)}

    def hand_out(self, x: Tree, clients: np.ndarray) -> Tree:
        """Returns each client's block of its own samples, {"own": (clients, maximum number of samples)}."""
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
        """Returns metrics of the detection of wrong labels by low weights: see `detection`."""
        return detection(self.weigh(x["weights"].cpu()), self.wrong.cpu())

    def histograms(self, x: Tree) -> dict[str, dict[str, Tensor]]:
        """Returns the weights of samples with right and with wrong labels."""
        weights, wrong = self.weigh(x["weights"].cpu()), self.wrong.cpu()
        return {"sample weight": {"right label": weights[~wrong], "wrong label": weights[wrong]}}


def detection(weights: Tensor, wrong: Tensor) -> dict[str, Any]:
    """Metrics of the detection of wrong labels by low weights. weights, wrong: (samples,).

    `cleaning_precision`, `cleaning_recall` and `cleaning_f1`: samples with weights below 1/2 are flagged as wrong; all
    are 0 if none is flagged. `cleaning_auc`: probability that a wrong label has a lower weight than a right one; ties
    count half. Returns {} if all labels are right, or all are wrong.
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
    """Masks the samples of a batch that are not selected. which (samples,): bool."""
    return replace(batch, mask=which.float() if batch.mask is None else batch.mask * which)
