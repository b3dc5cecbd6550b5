"""Hedge's rounds as arrays. matplotlib draws them for a search, inline SVG draws them in a report."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class HedgeCurves:
    """Hedge's rounds, at least one. weights, losses: rounds x experts; hedge_loss, regret, bound: rounds. NaN: unknown.

    named: the experts with a line of their own, by their mean and last weights. others: the rest, by index.
    """

    rounds: list[int]
    weights: np.ndarray
    losses: np.ndarray
    hedge_loss: np.ndarray
    regret: np.ndarray
    bound: np.ndarray
    named: list[int]
    others: list[int]

    @classmethod
    def read(cls, records: list[dict[str, Any]], most: int) -> "HedgeCurves":
        """From Hedge's records. most: the largest number of named experts."""
        weights, losses, hedge_loss, regret, bound = (
            np.array([record[key] for record in records], dtype=float)
            for key in ("weights", "losses", "hedge_loss", "regret", "bound")
        )
        named = np.argsort(-(weights.mean(0) + weights[-1]), kind="stable")[:most].tolist()
        others = [i for i in range(weights.shape[1]) if i not in named]
        rounds = [record["round"] for record in records]
        return cls(rounds, weights, losses, hedge_loss, regret, bound, named, others)

    @property
    def edges(self) -> list[int]:
        """The rounds and the end of the last one: a weight holds until the next round."""
        rounds = self.rounds
        return [*rounds, 2 * rounds[-1] - rounds[-2] if len(rounds) > 1 else rounds[-1] + 1]

    @property
    def bands(self) -> list[np.ndarray]:
        """The weights of each named expert, then the sum of the others' if there are any."""
        bands = [self.weights[:, i] for i in self.named]
        return [*bands, self.weights[:, self.others].sum(1)] if self.others else bands
