"""Statistics of a few seeds: means, paired differences, and how sure one may be of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95
ALIKE = 1e-9
"""Of the largest difference: a standard error below is what rounding makes of equal differences."""

EXACT = 14
"""Pairs up to which all patterns of signs are counted; beyond, as many are drawn."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (of a sample: n - 1) of some values; of one value there is no deviation."""

    mean: float
    std: float | None
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None, len(values))


@dataclass(frozen=True)
class Difference:
    """What pairs (two at least) differ by.

    low, high: 95 % confidence interval of the mean, by Student's t, which takes the differences for normal. p: of the
    same test that there is none. flips: p of the sign-flip test, which takes nothing but their symmetry, and cannot be
    below `least`. Equal differences leave Student's t nothing to measure by: there is no interval, and p is `flips`.
    """

    mean: float
    low: float | None
    high: float | None
    p: float
    flips: float
    n: int

    @property
    def least(self) -> float:
        return 2.0 ** (1 - self.n)


def paired(differences: Sequence[float]) -> Difference:
    """The statistics of paired differences."""
    d = np.asarray(differences, dtype=float)
    n, mean = len(d), float(d.mean())
    error, flips = float(d.std(ddof=1)) / math.sqrt(n), sign_flips(d)
    # Accuracies and rounds are discrete: two seeds that agree by chance say nothing of how far others would scatter.
    if error <= ALIKE * np.abs(d).max():
        return Difference(mean, None, None, flips, flips, n)
    margin = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
    p = float(2 * student.sf(abs(mean) / error, n - 1))
    return Difference(mean, mean - margin, mean + margin, p, flips, n)


def sign_flips(differences: Sequence[float] | np.ndarray) -> float:
    """How often signs at random make a mean as far from 0 as it is: of all patterns of signs, or of many."""
    d = np.asarray(differences, dtype=float)
    if len(d) <= EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=len(d))))
    else:
        drawn = np.random.default_rng(0).choice((1.0, -1.0), (2**EXACT, len(d)))
        # The pattern that was observed is one of them: no p is ever 0.
        signs = np.concatenate([np.ones((1, len(d))), drawn])
    sums = np.abs(signs @ d)
    return float(np.mean(sums >= sums[0] - 1e-12 * np.abs(d).sum()))


def holm(ps: Sequence[float], of: int | None = None) -> list[float]:
    """Holm's correction of p-values for how many are looked at, in their order.

    of: how many they were chosen from, where the same numbers chose them; None: they are all.
    """
    of = len(ps) if of is None else of
    found = [0.0] * len(ps)
    worst = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        worst = max(worst, min(1.0, (of - rank) * ps[i]))
        found[i] = worst
    return found
