"""Hedge's rounds as arrays, for the matplotlib figures of a search and the inline SVG of a report."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class WeightCurves:
    """Weights over rounds (at least one): (rounds, experts).

    named: indices of the experts with their own band, sorted by mean plus last weight. others: indices of the
    remaining experts.
    """

    rounds: list[int]
    weights: np.ndarray
    named: list[int]
    others: list[int]

    @classmethod
    def of(cls, rounds: list[int], weights: np.ndarray, most: int) -> "WeightCurves":
        """Selects the named experts. most: maximum number of them."""
        named = np.argsort(-(weights.mean(0) + weights[-1]), kind="stable")[:most].tolist()
        return cls(rounds, weights, named, [i for i in range(weights.shape[1]) if i not in named])

    @property
    def edges(self) -> list[int]:
        """Rounds, followed by the end of the last one: a weight holds until the next round."""
        rounds = self.rounds
        return [*rounds, 2 * rounds[-1] - rounds[-2] if len(rounds) > 1 else rounds[-1] + 1]

    @property
    def bands(self) -> list[np.ndarray]:
        """Weights of each named expert, followed by the sum of the other weights, if any."""
        bands = [self.weights[:, i] for i in self.named]
        return [*bands, self.weights[:, self.others].sum(1)] if self.others else bands


@dataclass(frozen=True)
class HedgeCurves(WeightCurves):
    """Hedge's rounds (at least one). losses: (rounds, experts); hedge_loss, regret, bound: (rounds,).

    Unknown values are NaN.
    """

    losses: np.ndarray
    hedge_loss: np.ndarray
    regret: np.ndarray
    bound: np.ndarray

    @classmethod
    def read(cls, records: list[dict[str, Any]], most: int) -> "HedgeCurves":
        """Reads Hedge's records. most: maximum number of named experts."""
        weights, *others = (
            np.array([record[key] for record in records], dtype=float)
            for key in ("weights", "losses", "hedge_loss", "regret", "bound")
        )
        curves = WeightCurves.of([record["round"] for record in records], weights, most)
        return cls(curves.rounds, weights, curves.named, curves.others, *others)
