"""Metrics of all samples of a split at once: they are no means over samples."""

import math

import numpy as np
from torch import Tensor

from hedgerow.algorithms.core.measures import metric

BINS = 15
"""Number of bins of the calibration error."""


@metric("max", "classes", "labels")
def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """Mean of the F1 of each class that is predicted or occurs, or of each label."""
    # Imported here: scikit-learn takes a second to import.
    from sklearn.metrics import f1_score

    predicted = outputs > 0 if targets.dim() > 1 else outputs.argmax(-1)
    return float(f1_score(targets.numpy(), predicted.numpy(), average="macro", zero_division=0))


@metric("max", "classes", "labels")
def auroc(outputs: Tensor, targets: Tensor) -> float:
    """Mean area under the ROC curve of each class against the others, or of each label.

    Classes and labels that all samples have, or none, are left out; NaN if none is left.
    """
    from sklearn.metrics import roc_auc_score

    number = outputs.shape[-1]
    scores = (outputs if targets.dim() > 1 else outputs.softmax(-1)).numpy()
    right = (targets > 0 if targets.dim() > 1 else targets[:, None] == targets.new_tensor(range(number))).numpy()
    areas = [roc_auc_score(right[:, k], scores[:, k]) for k in range(number) if 0 < right[:, k].sum() < len(right)]
    return float(np.mean(areas)) if areas else math.nan


@metric("min", "classes")
def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """Expected calibration error: difference of confidence and accuracy in 15 bins of equal width, weighted by samples
    [Guo2017].
    """
    confidence, predicted = outputs.softmax(-1).max(-1)
    bins = np.clip(np.ceil(confidence.numpy() * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = confidence.double().numpy() - (predicted == targets).numpy()
    return float(np.abs(np.bincount(bins, gaps, BINS)).sum() / len(targets))
