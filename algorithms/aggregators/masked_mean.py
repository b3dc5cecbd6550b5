"""Mean over the clients that hold a parameter."""

import torch

from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.algorithms.core.task import Params


def masked_mean(w: Params, totals: Params, holders: Params) -> Params:
    """Mean of each parameter over the clients that hold it, totals / holders; w where no client holds it."""
    return tree_map(lambda p, total, n: torch.where(n > 0, total / n.where(n > 0, 1.0), p), w, totals, holders)
