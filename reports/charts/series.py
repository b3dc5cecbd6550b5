"""Lines as numbers, before they are drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Series:
    """A line: its points, and where they are known, how far they spread. index: which colour."""

    label: str
    points: list[tuple[float, float]]
    spread: list[float] = field(default_factory=list)
    index: int = 0
    strong: bool = False

    @property
    def pairs(self) -> list[tuple[tuple[float, float], float]]:
        """Each point with its spread, 0 where none is known."""
        return list(zip(self.points, self.spread or [0.0] * len(self.points), strict=True))

    def finite(self) -> "Series":
        """Without the points that are not finite."""
        kept = [(p, s) for p, s in self.pairs if math.isfinite(p[1]) and math.isfinite(s)]
        spread = [s for _, s in kept] if self.spread else []
        return Series(self.label, [p for p, _ in kept], spread, self.index, self.strong)


def late_start(drawn: Sequence[Series]) -> float | None:
    """Where an axis may begin for lines that rise: below what they are after a tenth of their way."""
    after = [value for one in drawn for _, value in one.points[len(one.points) // 10 :]]
    ends = [one.points[-1][1] for one in drawn]
    if len(after) < 20 or min(ends) < 2 * min(v for one in drawn for _, v in one.points):
        return None
    low = float(np.quantile(after, 0.02))
    return low - 0.1 * (max(after) - low)


def thinned(values: list[Any], most: int) -> list[Any]:
    """Evenly chosen, the first and the last among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]
