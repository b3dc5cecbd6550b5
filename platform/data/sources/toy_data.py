"""DiSK's two toy data sets (thesis, chapter 6), whose best and poor students are known."""

from pathlib import Path

import numpy as np
from pydantic import Field

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.source import Seed, Source

BLUE = ((2.0, 3.0), (5.0, 7.0))
RED = ((0.0, 2.0), (3.0, 5.0), (7.0, 9.0))

CENTRES = np.array([[[0.0, 0.0], [3.0, 1.5]], [[1.5, 0.0], [0.0, 1.5]], [[3.0, 0.0], [1.5, 1.5]]])
"""Centres of the Gaussians, (classes, 2, 2): red, blue, green."""


class IntervalsData(Source):
    """DiSK's toy data on a line: points in [0, 9], blue in [2, 3] and [5, 7], red elsewhere, equally many of both."""

    samples: int = Field(1000, ge=2, description="training samples")
    test_samples: int = Field(100, ge=2, description="test samples")
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        return self.samples + self.test_samples

    def load(self, root: Path) -> Dataset:
        rng = np.random.default_rng([self.seed, 83])
        train, test = (_on_a_line(rng, samples) for samples in (self.samples, self.test_samples))
        zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
        return Dataset("intervals", *train, *test, 2, zero, one, ("red", "blue"))


def _on_a_line(rng: np.random.Generator, samples: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(samples) % 2
    x = np.empty(samples)
    for label, parts in enumerate((RED, BLUE)):
        lows, highs = np.array(parts).T
        ends = np.cumsum(highs - lows)
        along = rng.uniform(0, ends[-1], int((y == label).sum()))
        part = np.searchsorted(ends, along, side="right")
        x[y == label] = highs[part] - (ends[part] - along)
    return x[:, None].astype(np.float32), y.astype(np.int64)


class GaussiansData(Source):
    """DiSK's toy data in the plane: six Gaussians, two for each of three classes."""

    samples: int = Field(1000, ge=6, description="training samples")
    test_samples: int = Field(1000, ge=6, description="test samples")
    variance: float = Field(0.05, gt=0, description="variance of each coordinate")
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        return 2 * (self.samples + self.test_samples)

    def load(self, root: Path) -> Dataset:
        rng = np.random.default_rng([self.seed, 89])
        train, test = (_in_the_plane(rng, samples, self.variance) for samples in (self.samples, self.test_samples))
        zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)
        return Dataset("gaussians", *train, *test, 3, zero, one, ("red", "blue", "green"))


def _in_the_plane(rng: np.random.Generator, samples: int, variance: float) -> tuple[np.ndarray, np.ndarray]:
    y, which = np.arange(samples) % 3, np.arange(samples) // 3 % 2
    x = CENTRES[y, which] + np.sqrt(variance) * rng.normal(size=(samples, 2))
    return x.astype(np.float32), y.astype(np.int64)
