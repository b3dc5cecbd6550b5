"""Noisy validation: a random subset of the clients scores a model, and Gaussian noise is added to the score."""

import json
import math
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np


@dataclass(frozen=True)
class ValidationNoise:
    """Noise of the validation of one configuration; depends on seed, configuration and round only.

    configuration: from `configuration_key`. metric: the validation metric that receives Gaussian noise. scale: its
    standard deviation; an accuracy stays in [0, 1]. clients: number of clients that score the model in each evaluation;
    None: all.
    """

    seed: int
    configuration: int
    metric: str
    scale: float = 0.0
    clients: int | None = None

    def subset(self, clients: np.ndarray, round: int) -> np.ndarray:
        """Random subset of the clients (ids, ascending) for the evaluation of a round."""
        if self.clients is None or self.clients >= len(clients):
            return clients
        return np.sort(self._generator("clients", round).choice(clients, self.clients, replace=False))

    def apply(self, record: dict[str, Any], round: int) -> dict[str, Any]:
        """Record of a round with noise on the metric; unchanged if the metric is missing or not finite."""
        value = record.get(self.metric)
        if not self.scale or value is None or not math.isfinite(value):
            return record
        noisy = float(value + self.scale * self._generator("scale", round).standard_normal())
        return record | {self.metric: min(max(noisy, 0.0), 1.0) if "accuracy" in self.metric else noisy}

    def _generator(self, purpose: str, round: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, crc32(purpose.encode()), self.configuration, round])


def configuration_key(overrides: dict[str, Any]) -> int:
    """Number that identifies a configuration: 32 bits of its values."""
    return crc32(json.dumps(overrides, sort_keys=True).encode())
