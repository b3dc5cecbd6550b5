"""Regression: one or several numbers per sample."""

import math

from torch import Tensor

from hedgerow.algorithms.core.measures import metric


@metric("min", "numbers")
def mse(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Mean squared error, over the samples and the numbers of each."""
    return (outputs - targets).square().reshape(len(mask), -1).mean(1)


@metric("min", "numbers", finish=math.sqrt)
def rmse(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Root of the mean squared error."""
    return (outputs - targets).square().reshape(len(mask), -1).mean(1)


@metric("min", "numbers")
def mae(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Mean absolute error, over the samples and the numbers of each."""
    return (outputs - targets).abs().reshape(len(mask), -1).mean(1)
