"""Hedge's rounds as arrays, for the matplotlib figures of a search and the inline SVG of a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.ui.series import Points
from hedgerow.searchspaces.hedge.deployment import score_names

HINDSIGHT = "best expert in hindsight"


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


def score_kind(metric: str) -> str:
    """Kind of the scores by which the deployed policies of a search are compared: "accuracy" if its metric is the
    accuracy, otherwise "loss". A mixture has no other scores.
    """
    return "accuracy" if metric == score_names(metric)["accuracy"] else "loss"


def deployed_curves(
    hedge: Sequence[RoundRecord], experts: Sequence[Mapping[int, RoundRecord]], metric: str
) -> dict[str, Points]:
    """Mean so far of the `score_kind` of each deployed policy, and of the best expert in hindsight, by round.

    experts: records by round, of each expert. metric: metric of the search. Rounds in which a value is missing are left
    out; a policy without any has no curve. {}: the records are of a version that did not record the policies.
    """
    kind = score_kind(metric)
    scores: dict[str, dict[int, Any]] = {}
    for record in hedge:
        for policy, score in record.get("deployed", {}).items():
            scores.setdefault(policy, {})[record["round"]] = (score or {}).get(kind)
    if not scores:
        return {}
    best, name = experts[hedge[-1]["best"]], score_names(metric)[kind]
    scores[HINDSIGHT] = {record["round"]: best.get(record["round"], {}).get(name) for record in hedge}
    curves = {name: _means(values) for name, values in scores.items()}
    return {name: points for name, points in curves.items() if points}


def _means(values: Mapping[int, Any]) -> Points:
    known = [(round, value) for round, value in values.items() if value is not None and np.isfinite(value)]
    sums = np.cumsum([value for _, value in known])
    return [(round, float(total / count)) for count, ((round, _), total) in enumerate(zip(known, sums, strict=True), 1)]
