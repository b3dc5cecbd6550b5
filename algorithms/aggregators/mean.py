"""The weighted mean."""

import torch
from torch import Tensor

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.core.pytree import Tree, tree_map


class Mean(Aggregator):
    """Weighted mean of the updates."""

    is_mean = True

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        shares = weights / weights.sum()
        return tree_map(lambda leaf: torch.tensordot(shares, leaf.double(), 1).to(leaf.dtype), updates)
