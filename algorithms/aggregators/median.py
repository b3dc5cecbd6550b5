"""The coordinate-wise median."""

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.aggregators.stacks import by_coordinate, sorted_columns
from hedgerow.algorithms.core.pytree import Tree


class Median(Aggregator):
    """Median of each coordinate (Yin et al., 2018); the mean of the two middle updates if their number is even.

    All clients count equally: weights are refused.
    """

    uses_weights = False

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        def middle(piece: Tensor) -> Tensor:
            n = len(piece)
            both = sorted_columns(piece)[[(n - 1) // 2, n // 2]]
            return torch.from_numpy(both.mean(0, dtype=np.float64))

        return by_coordinate(updates, middle)
