"""Mean over the clients that have a parameter."""

import torch

from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.task import Params


def masked_mean(w: Params, totals: Params, holders: Params) -> Params:
    """Parameter by parameter the mean over those who have it: totals / holders; where nobody has it, w."""
    return tree_map(lambda p, total, n: torch.where(n > 0, total / n.where(n > 0, 1.0), p), w, totals, holders)
