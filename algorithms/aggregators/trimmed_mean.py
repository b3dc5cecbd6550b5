"""The coordinate-wise trimmed mean."""

import math

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.aggregators.stacks import by_coordinate, sorted_columns
from hedgerow.algorithms.core.pytree import Tree


class TrimmedMean(Aggregator):
    """Mean of each coordinate without the floor(beta n) smallest and largest of n updates (Yin et al., 2018).

    The updates to drop are counted, whatever their weights; the mean of the others is weighted.
    """

    beta: float = Field(0.2, ge=0, lt=0.5, description="fraction of the updates that is dropped at either end")

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        n = len(weights)
        # Without the margin, 0.29 of 100 clients would be 28 of them.
        drop = math.floor(self.beta * n + 1e-9)
        is_uniform = bool((weights == weights[0]).all())

        def trimmed(piece: Tensor) -> Tensor:
            if is_uniform:
                return torch.from_numpy(sorted_columns(piece)[drop : n - drop]).double().mean(0)
            values, order = piece.sort(dim=0, stable=True)
            kept = weights[order[drop : n - drop]]
            return (kept * values[drop : n - drop]).sum(0) / kept.sum(0)

        return by_coordinate(updates, trimmed)
