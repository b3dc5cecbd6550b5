"""Smooths the metric by which a search ranks its trials, so that the noise of a single evaluation does not decide."""

import math
from collections.abc import Sequence
from statistics import fmean


def smoothed(values: Sequence[float], smooth: float) -> float:
    """Mean of the last ceil(smooth * n) of n values, at least of the last one.

    If some of these are not finite, the last one that is not is returned. values: at least one.
    """
    # The product may exceed a whole number by a rounding error.
    window = values[-max(1, math.ceil(smooth * len(values) - 1e-9)) :]
    endless = [value for value in window if not math.isfinite(value)]
    return endless[-1] if endless else fmean(window)
