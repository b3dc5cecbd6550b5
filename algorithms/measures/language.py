"""Language modelling: the model predicts a token at every position of a sequence."""

import math

import torch
from torch import Tensor

from hedgerow.algorithms.core.measures import cross_entropies, loss, metric

IGNORED = -100
"""Target of a position that does not count, such as padding; PyTorch's `ignore_index`."""


@loss("tokens")
def next_token(outputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the token at each position, mean over all positions of all samples."""
    real = _real(targets, mask)
    return (cross_entropies(outputs, targets.clamp(min=0)) * real).sum(), real.sum()


@metric("min", "tokens", finish=math.exp)
def perplexity(outputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Exponential of the mean cross-entropy over all positions."""
    result: tuple[Tensor, Tensor] = next_token.function(outputs, targets, mask)
    return result


@metric("max", "tokens")
def token_accuracy(outputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Share of the positions at which the most probable token is the right one."""
    real = _real(targets, mask)
    return ((outputs.argmax(-1) == targets).to(real.dtype) * real).sum(), real.sum()


def _real(targets: Tensor, mask: Tensor) -> Tensor:
    """Positions that count, (samples, positions)."""
    return torch.where(targets != IGNORED, mask[:, None], torch.zeros_like(mask)[:, None])
