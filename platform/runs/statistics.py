"""Statistics of a few seeds: means, paired differences, confidence intervals and p-values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.stats import t as student

CONFIDENCE = 0.95
ALIKE = 1e-9
"""Threshold relative to the largest difference: a smaller standard error is a rounding error of equal differences."""

EXACT = 14
"""Largest number of pairs for which all sign patterns are enumerated; for more pairs, 2**EXACT patterns are drawn."""


@dataclass(frozen=True)
class Estimate:
    """Mean of some values with its 95 % confidence interval by Student's t, which assumes normal values.

    error: standard error. One value, and equal ones, have no interval and no error.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    error: float | None = None

    @classmethod
    def of(cls, values: Sequence[float] | np.ndarray) -> "Estimate":
        """values: at least one."""
        v = np.asarray(values, dtype=float)
        n, mean = len(v), float(v.mean())
        error = float(v.std(ddof=1)) / math.sqrt(n) if n > 1 else 0.0
        # Accuracies and rounds are discrete: two seeds that agree by chance do not show how much others would vary.
        if not error > ALIKE * np.abs(v).max():
            return cls(mean)
        margin = float(student.ppf((1 + CONFIDENCE) / 2, n - 1)) * error
        return cls(mean, mean - margin, mean + margin, error)

    @property
    def numbers(self) -> list[float]:
        return [self.mean] if self.low is None or self.high is None else [self.mean, self.low, self.high]

    def text(self, texts: Sequence[str]) -> str:
        """Text such as "94.2 % [93.1 %, 95.3 %]"."""
        return f"{texts[0]} [{', '.join(texts[1:])}]" if len(texts) > 1 else texts[0]


@dataclass(frozen=True)
class Difference:
    """The mean difference of at least two pairs.

    low, high: 95 % confidence interval of the mean by Student's t, which assumes normal differences. p: p-value of
    the t-test of no difference. flips: p-value of the sign-flip test, which assumes only symmetry and cannot be below
    `least`. Equal differences have no variance for a t-test: there is no interval, and p equals `flips`.
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
    """Mean, interval and p-values of paired differences."""
    d = np.asarray(differences, dtype=float)
    n, flips, mean = len(d), sign_flips(d), Estimate.of(d)
    if mean.low is None or mean.high is None or mean.error is None:
        return Difference(mean.mean, None, None, flips, flips, n)
    p = float(2 * student.sf(abs(mean.mean) / mean.error, n - 1))
    return Difference(mean.mean, mean.low, mean.high, p, flips, n)


def sign_flips(differences: Sequence[float] | np.ndarray) -> float:
    """Share of sign patterns, all or many random ones, whose mean is at least as far from 0 as the observed one."""
    d = np.asarray(differences, dtype=float)
    if len(d) <= EXACT:
        signs = np.array(list(product((1.0, -1.0), repeat=len(d))))
    else:
        random_signs = np.random.default_rng(0).choice((1.0, -1.0), (2**EXACT, len(d)))
        # The observed pattern is included, so p is never 0.
        signs = np.concatenate([np.ones((1, len(d))), random_signs])
    sums = np.abs(signs @ d)
    return float(np.mean(sums >= sums[0] - 1e-12 * np.abs(d).sum()))


def holm(ps: Sequence[float], of: int | None = None) -> list[float]:
    """Holm's correction of p-values for multiple tests, in their order.

    of: the number of tests that these were selected from, if the same numbers select them; None: all tests are given.
    """
    of = len(ps) if of is None else of
    p_values = [0.0] * len(ps)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (of - rank) * ps[i]))
        p_values[i] = largest
    return p_values
