"""The weighted mean."""

from hedgerow.algorithms.aggregators.aggregator import Aggregator


class Mean(Aggregator):
    """Weighted mean of the updates, which workers sum locally."""

    is_mean = True
