"""Loss of FLUTE's logistic regression."""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812


def sigmoid_cross_entropy(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of softmax(sigmoid(outputs)) (FLUTE, experiments/cv_lr_mnist/model.py)."""
    return F.cross_entropy(outputs.sigmoid(), targets, reduction="none")
