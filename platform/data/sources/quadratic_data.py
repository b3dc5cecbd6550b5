"""Random quadratic bilevel problems (FedBiO's closed-form problem)."""

from typing import TYPE_CHECKING

import numpy as np

from hedgerow.platform.data.dataset import Dataset

if TYPE_CHECKING:
    from hedgerow.platform.data.sources.source import QuadraticData


def generate(config: "QuadraticData") -> Dataset:
    """Each client's samples are its problem plus noise, whose mean over them is 0."""
    rng = np.random.default_rng([config.seed, 83])
    common = _problem(config, rng)
    rows = []
    for _ in range(config.clients):
        own, h = _problem(config, rng), config.heterogeneity
        mean = [(1 - h) * ours + h * mine for ours, mine in zip(common, own, strict=True)]
        rows.append(_samples(config, mean, rng))
    x = np.concatenate(rows).astype(np.float32)
    nothing = np.zeros((0, x.shape[1]), np.float32)
    labels = np.zeros(len(x), np.int64)
    zero, one = np.zeros(x.shape[1], np.float32), np.ones(x.shape[1], np.float32)
    owners = np.repeat(np.arange(config.clients), config.samples)
    return Dataset("quadratic", x, labels, nothing, labels[:0], 1, zero, one, ("",), train_clients=owners)


def _problem(config: "QuadraticData", rng: np.random.Generator) -> list[np.ndarray]:
    """A, B, c, D, e, P, r."""
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


def _samples(config: "QuadraticData", mean: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """(samples, features)"""
    pieces = []
    for part in mean:
        scale = config.noise if part.ndim == 1 else config.matrix_noise / part.shape[0] ** 0.5
        noise = rng.normal(0, 1, (config.samples, *part.shape))
        if part.ndim == 2 and part.shape[0] == part.shape[1]:
            noise = (noise + noise.transpose(0, 2, 1)) / 2**0.5
        noise -= noise.mean(0)
        pieces.append((part + scale * noise).reshape(config.samples, -1))
    return np.concatenate(pieces, axis=1)
