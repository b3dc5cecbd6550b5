"""Smooths the metric by which a search ranks its trials, so that the noise of a single evaluation does not decide."""

import math
from collections.abc import Sequence
from statistics import fmean

from hedgerow.platform.storage.history import RoundRecord

EVALUATED = ("validation_loss", "test_loss", "validation_accuracy", "test_accuracy")
"""Metrics of evaluated rounds: each has at least one of them."""


def smoothed(values: Sequence[float], smooth: float) -> float:
    """Mean of the last ceil(smooth * n) of n values, at least of the last one.

    If some of these are not finite, the last one that is not is returned. values: at least one.
    """
    # The product may exceed a whole number by a rounding error.
    window = values[-max(1, math.ceil(smooth * len(values) - 1e-9)) :]
    endless = [value for value in window if not math.isfinite(value)]
    return endless[-1] if endless else fmean(window)


def score_of(records: Sequence[RoundRecord], metric: str, smooth: float) -> float | None:
    """Smoothed value of a metric over the rounds that have it; None if no round has it."""
    values = [record[metric] for record in records if record.get(metric) is not None]
    return smoothed(values, smooth) if values else None


def report_of(records: Sequence[RoundRecord], metric: str, smooth: float) -> RoundRecord:
    """Metrics that a trial reports: those of its last evaluated round, with the smoothed value of the search's metric.

    Without an evaluated round, the record of the last round.
    """
    evaluated = (record for record in reversed(records) if not record.keys().isdisjoint(EVALUATED))
    score = score_of(records, metric, smooth) if smooth else None
    return {**next(evaluated, records[-1] if records else {}), **({} if score is None else {metric: score})}


def tie_breaker(records: list[RoundRecord], metric: str) -> float:
    """Final loss that orders trials with equal values of a metric: on validation samples or, without any, on the
    samples of the metric. Infinite if there is none: such trials keep their order.

    An accuracy on few samples has few values, so that ties are frequent.
    """
    for name in ("validation_loss", f"{metric.partition('_')[0]}_loss"):
        loss = score_of(records, name, 0.0)
        if loss is not None:
            return loss if math.isfinite(loss) else math.inf
    return math.inf
