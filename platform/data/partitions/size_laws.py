"""Laws of client sizes: how a number of samples is divided over the clients of any scheme that takes `sizes`."""

from typing import Annotated

import numpy as np
from pydantic import Field

from hedgerow.platform.common.section import Section


class SizeLaw(Section):
    """Law of client sizes. The sizes add up to all samples that are dealt, and are rounded to whole samples."""

    kind: str = ""
    """Name of the law in the experiment file, set by the registry."""

    minimum: int = Field(1, ge=1, description="smallest number of samples of a client")

    @property
    def total(self) -> int | None:
        """Number of samples of all clients together; None: all that are there."""
        return None

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        """Relative sizes of the clients, (m,), not negative; the first ones may be the smallest or the largest."""
        raise NotImplementedError


class ListedSizes(SizeLaw):
    """The number of samples of each client is given."""

    samples: list[Annotated[int, Field(ge=1)]] = Field(min_length=1, description="number of samples of each client")

    @property
    def total(self) -> int:
        return sum(self.samples)

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.array(self.samples, dtype=float)


class LognormalSizes(SizeLaw):
    """Sizes are drawn from a lognormal distribution."""

    sigma: float = Field(gt=0, description="standard deviation of the logarithm of the sizes")

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return rng.lognormal(0.0, self.sigma, clients)


class PowerLawSizes(SizeLaw):
    """The size of client k, counted from 1, is proportional to k to the power of -`exponent`."""

    exponent: float = Field(1.0, gt=0, description="exponent; larger values make the first clients larger")

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.arange(1.0, clients + 1) ** -self.exponent


class ExponentialSizes(SizeLaw):
    """The size of client k is proportional to exp(`rate` k)."""

    rate: float = Field(1.0, gt=0, description="logarithm of the ratio of the sizes of a client and the one before")

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.exp(self.rate * (np.arange(clients) - (clients - 1)))


class LinearSizes(SizeLaw):
    """The size of client k, counted from 1, is proportional to k."""

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.arange(1.0, clients + 1)


class SquareSizes(SizeLaw):
    """The size of client k, counted from 1, is proportional to the square of k."""

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return np.arange(1.0, clients + 1) ** 2


class DirichletSizes(SizeLaw):
    """The clients' shares of all samples are drawn from a Dirichlet distribution (Li et al. 2022, quantity skew)."""

    alpha: float = Field(gt=0, description="concentration: smaller values make sizes differ more")

    def weights(self, clients: int, rng: np.random.Generator) -> np.ndarray:
        return rng.dirichlet(np.full(clients, self.alpha))


TINY = 1e-290
"""Sum of weights below which they are rescaled before a division by it."""


def divided(total: int, weights: np.ndarray, minimum: int = 0) -> np.ndarray:
    """Whole numbers that add up to `total`, in proportion to the weights, but at least `minimum`.

    Rounded by largest remainders. `total` must be at least `minimum` times the number of weights.
    """
    at_minimum = np.zeros(len(weights), bool)
    while True:
        rest = total - minimum * at_minimum.sum()
        free = np.where(at_minimum, 0.0, weights)
        if 0 < free.sum() < TINY:
            # A quotient by this sum would be infinite.
            free = free / free.max()
        shares = free * (rest / free.sum()) if free.sum() > 0 else np.where(at_minimum, 0.0, rest / (~at_minimum).sum())
        below = ~at_minimum & (shares < minimum * (1 - 1e-12))
        if not below.any():
            break
        at_minimum |= below
    shares[at_minimum] = minimum
    # A share that should be whole may be just below it.
    sizes = np.floor(shares + 1e-9).astype(np.int64)
    remainders = shares - sizes
    sizes[np.argsort(-remainders, kind="stable")[: total - sizes.sum()]] += 1
    return sizes
