"""Multi-label classification: labels that are 0 or 1, several per sample; a logit above 0 predicts 1."""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.measures import loss, metric


@loss("labels")
def bce(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Binary cross-entropy of the logits, mean over the labels of a sample."""
    return (F.softplus(outputs) - outputs * targets).mean(1)


@metric("max", "labels")
def label_accuracy(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Share of the labels that are predicted correctly."""
    return ((outputs > 0) == (targets > 0)).to(outputs.dtype).mean(1)


@metric("max", "labels")
def f1(outputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Micro-averaged F1 over all samples and labels: 2 TP / (2 TP + FP + FN)."""
    predicted, right = ((part > 0).to(outputs.dtype) * mask[:, None] for part in (outputs, targets))
    return 2 * (predicted * right).sum(), predicted.sum() + right.sum()
