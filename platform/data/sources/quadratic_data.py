"""Random quadratic bilevel problems (FedBiO's closed-form problem)."""

from pathlib import Path

import numpy as np
from pydantic import Field

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.source import Seed, Source


class QuadraticData(Source):
    """Random quadratic bilevel problems, one per client: g = 1/2 y'A y - y'(B x + c) and
    f = 1/2 y'D y - e'y + 1/2 x'P x - r'x.

    A sample contains the coefficients of one problem. Eigenvalues of A are in [1, 4], of D in [0.5, 1.5], of P in [0.5,
    1]; entries of B ~ N(0, 1/lower), of c, e, r ~ N(0, 1).
    """

    clients: int = Field(8, ge=1, description="number of clients")
    upper: int = Field(4, ge=1, description="dimension of x")
    lower: int = Field(6, ge=1, description="dimension of y")
    heterogeneity: float = Field(
        1.0,
        ge=0,
        le=1,
        description="share of a problem that is specific to its client; the rest is common to all clients",
    )
    samples: int = Field(2, ge=2, description="samples per client, dealt to training and validation")
    noise: float = Field(0.0, ge=0, description="standard deviation of c, e and r over samples")
    matrix_noise: float = Field(
        0.0,
        ge=0,
        description="standard deviation of A, B, D and P over samples, times the square root of the dimension",
    )
    seed: Seed = 0

    @property
    def drawn(self) -> int:
        p, d = self.upper, self.lower
        return self.clients * self.samples * (2 * d * d + d * p + p * p)

    def load(self, root: Path) -> Dataset:
        """Each client's samples are its problem plus noise, whose mean over these samples is 0."""
        rng = np.random.default_rng([self.seed, 83])
        common = _problem(self, rng)
        rows = []
        for _ in range(self.clients):
            own, h = _problem(self, rng), self.heterogeneity
            mean = [(1 - h) * ours + h * mine for ours, mine in zip(common, own, strict=True)]
            rows.append(_samples(self, mean, rng))
        x = np.concatenate(rows).astype(np.float32)
        nothing = np.zeros((0, x.shape[1]), np.float32)
        labels = np.zeros(len(x), np.int64)
        zero, one = np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)
        owners = np.repeat(np.arange(self.clients), self.samples)
        return Dataset("quadratic", x, labels, nothing, labels[:0], 1, zero, one, ("",), train_clients=owners)


def _problem(config: QuadraticData, rng: np.random.Generator) -> list[np.ndarray]:
    """Coefficients A, B, c, D, e, P, r of a random problem."""
    p, d = config.upper, config.lower
    return [
        _matrix(d, 1, 4, rng),
        rng.normal(0, d**-0.5, (d, p)),
        rng.normal(size=d),
        _matrix(d, 0.5, 1.5, rng),
        rng.normal(size=d),
        _matrix(p, 0.5, 1, rng),
        rng.normal(size=p),
    ]


def _matrix(size: int, low: float, high: float, rng: np.random.Generator) -> np.ndarray:
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return basis @ np.diag(rng.uniform(low, high, size)) @ basis.T


def _samples(config: QuadraticData, mean: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Samples of one client, (samples, features)."""
    pieces = []
    for part in mean:
        scale = config.noise if part.ndim == 1 else config.matrix_noise / part.shape[0] ** 0.5
        noise = rng.normal(0, 1, (config.samples, *part.shape))
        if part.ndim == 2 and part.shape[0] == part.shape[1]:
            noise = (noise + noise.transpose(0, 2, 1)) / 2**0.5
        noise -= noise.mean(0)
        pieces.append((part + scale * noise).reshape(config.samples, -1))
    return np.concatenate(pieces, axis=1)
