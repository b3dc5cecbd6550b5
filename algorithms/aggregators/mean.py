"""The weighted mean."""

from torch import Tensor

from hedgerow.algorithms.aggregators.aggregator import Aggregator
from hedgerow.algorithms.aggregators.stacks import weighted_sum
from hedgerow.algorithms.core.pytree import Tree


class Mean(Aggregator):
    """Weighted mean of the updates, which workers sum locally."""

    is_mean = True

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        """Mean of updates that are stacked anyway, because colluding attackers replace them on the server."""
        return weighted_sum(updates, weights / weights.sum())
