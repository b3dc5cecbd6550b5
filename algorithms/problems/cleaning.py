"""Federated data cleaning: which training labels are wrong is learnt from clean samples for validation."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hedgerow.algorithms.base import Batch
from hedgerow.algorithms.bilevel import BilevelTask
from hedgerow.algorithms.task import Params, cross_entropies
from hedgerow.algorithms.trees import Tree


@dataclass(frozen=True)
class Cleaning(BilevelTask):
    """x: one logit per training sample, whose sigmoid is its weight in the lower loss. y: the classifier.

    All clients share x: where it is averaged, a sample's logit moves by 1/M of what its owner moved it.

    slots (samples of the data set,): where a sample's logit stands in x. wrong (training samples,): in the order of x,
    True where the label is wrong; the algorithms do not see it.
    """

    slots: Tensor | None = None
    wrong: Tensor | None = None

    def start(self) -> Tree:
        """All weights 1/2."""
        assert self.wrong is not None
        return {"x": {"weights": torch.zeros(len(self.wrong))}, "y": self.init()}

    def upper(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return self.loss(y, batch)

    def lower(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        """The mean of weight times cross-entropy; weights are not normalised."""
        assert self.slots is not None
        weights = torch.sigmoid(x["weights"][self.slots[batch.rows]])
        losses = weights * cross_entropies(self.logits(y, batch.x), batch.y)
        return losses.mean() if batch.mask is None else (losses * batch.mask).sum() / batch.mask.sum().clamp(min=1.0)

    def params(self, x: Tree, y: Tree) -> Params:
        return y

    def report(self, x: Tree, y: Tree | None, ridge: float) -> dict[str, float]:
        """How well low weights tell wrong labels.

        `cleaning_f1`: of weights below 1/2; `cleaning_auc`: the chance that a wrong label has the lower weight of two,
        a wrong and a right one, where ties count half. Nothing where all labels are right, or all wrong.
        """
        assert self.wrong is not None
        return detection(torch.sigmoid(x["weights"].cpu()), self.wrong.cpu())


def detection(weights: Tensor, wrong: Tensor) -> dict[str, Any]:
    """F1 and AUC of finding wrong labels by their low weights. weights, wrong: (samples,)."""
    bad, good = int(wrong.sum()), int((~wrong).sum())
    if not bad or not good:
        return {}
    flagged = weights < 0.5
    hits = int((flagged & wrong).sum())
    _, inverse, counts = torch.unique(weights, return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[inverse]
    below = float(ranks[~wrong].double().sum()) - good * (good + 1) / 2
    return {"cleaning_f1": 2 * hits / (int(flagged.sum()) + bad), "cleaning_auc": below / (good * bad)}
