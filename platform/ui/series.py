"""Data of curves and histograms, which matplotlib draws for a run, and inline SVG in a report."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from hedgerow.platform.common.numbers import name_of
from hedgerow.platform.schedules.events import COUNT
from hedgerow.platform.storage.history import RoundRecord

Points = list[tuple[float, float]]

AXES = {"round": "round", "traffic": "transmitted parameters (down + up)", "time": "simulated seconds"}
"""Quantities that curves are drawn against, with the label of their axis."""

STREAM_CURVES = {
    "ctm": "accuracy on new tasks, mean so far (CTM)",
    "ltm": "accuracy on all tasks so far (LTM)",
    "efficiency_points": "samples of a new task that are needed",
}
"""Metrics of algorithms on a stream that are drawn, with the label of their axis."""

DRAWN = (
    *STREAM_CURVES,
    *("test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "train_loss", "client_accuracy"),
    *("client_accuracy_worst10", "client_accuracy_highest", "client_accuracy_lowest", "client_loss"),
    *("server_test_accuracy", "server_test_loss", "staleness_mean", "staleness_max"),
)
"""Metrics that are drawn first, in their order."""

SMOOTHED = "efficiency_points"
"""Metric that is drawn as a moving average."""


@dataclass(frozen=True)
class Series:
    """A line with a label. spread: half the height of its band at each point, if it has one. index: its colour."""

    label: str
    points: Points
    spread: list[float] = field(default_factory=list)
    index: int = 0

    @property
    def pairs(self) -> list[tuple[tuple[float, float], float]]:
        """Each point with its spread, or with 0."""
        return list(zip(self.points, self.spread or [0.0] * len(self.points), strict=True))

    def finite(self) -> "Series":
        """Returns the series without points that are not finite."""
        pairs = [(p, s) for p, s in self.pairs if math.isfinite(p[1]) and math.isfinite(s)]
        spread = [s for _, s in pairs] if self.spread else []
        return Series(self.label, [p for p, _ in pairs], spread, self.index)


def metric_label(key: str) -> str:
    """Axis label of a metric."""
    return STREAM_CURVES.get(key) or name_of(key)


def drawn_metric(name: str, runs: Iterable[list[RoundRecord]]) -> str:
    """Metric whose curve stands for a measure of these runs, such as accuracy: on test samples or, where at most the
    last evaluations have these, on validation samples.
    """
    counts = [[sum(f"{of}_{name}" in record for record in run) for of in ("test", "validation")] for run in runs]
    return f"validation_{name}" if any(v > 1 for _, v in counts) and all(t < 2 for t, _ in counts) else f"test_{name}"


def of_stream(records: list[RoundRecord]) -> bool:
    """Whether the rounds are the tasks of a stream."""
    return bool(records) and "ctm" in records[0]


def traffic(records: list[RoundRecord]) -> list[int]:
    """Transmitted parameters, down and up, summed over the rounds."""
    return list(accumulate(record.get("scalars_down", 0) + record.get("scalars_up", 0) for record in records))


def is_simulated(records: list[RoundRecord]) -> bool:
    """Whether the rounds take simulated seconds."""
    return bool(records) and "simulated_seconds" in records[-1]


def axes_of(runs: Iterable[list[RoundRecord]]) -> list[str]:
    """Keys of the AXES that curves of these runs are drawn against."""
    timed = any(is_simulated(records) for records in runs)
    return [by for by in AXES if by != "time" or timed]


def staleness_counts(records: list[RoundRecord]) -> list[int]:
    """Number of updates of a run by staleness, from 0; empty if the run had no asynchronous schedule."""
    counts: dict[int, int] = {}
    for record in records:
        for name, number in record.items():
            if name.startswith(COUNT):
                tau = int(name.removeprefix(COUNT))
                counts[tau] = counts.get(tau, 0) + int(number)
    return [counts.get(tau, 0) for tau in range(max(counts, default=-1) + 1)]


def curve(records: list[RoundRecord], key: str, by: str = "round") -> dict[int, tuple[float, float]]:
    """Points of a metric by round, for the rounds that have it. by: a key of AXES. NaN stands for null."""
    if by == "time" and not is_simulated(records):
        return {}
    position = "simulated_seconds" if by == "time" else "round"
    places = traffic(records) if by == "traffic" else [record[position] for record in records]
    entries = [(record, place) for record, place in zip(records, places, strict=True) if key in record]
    points = [(place, math.nan if record[key] is None else record[key]) for record, place in entries]
    values = smoothed(points) if key == SMOOTHED else points
    return {record["round"]: point for (record, _), point in zip(entries, values, strict=True)}


def smoothed(points: Points) -> Points:
    """Moving average: each value is replaced by the mean of a window, a twentieth of the points, that ends with it."""
    window = max(1, len(points) // 20)
    values = [value for _, value in points]
    return [(x, float(np.mean(values[max(0, i + 1 - window) : i + 1]))) for i, (x, _) in enumerate(points)]


def mean_series(label: str, curves: Sequence[dict[int, tuple[float, float]]], index: int) -> Series:
    """Mean over seeds, with one sample standard deviation as its band; positions are means too.

    The line ends with the shortest run: the mean of the others would jump.
    """
    rounds = sorted(round for round in curves[0] if all(round in curve for curve in curves))
    at = [np.array([curve[round] for curve in curves], dtype=float) for round in rounds]
    points = [(float(both[:, 0].mean()), float(both[:, 1].mean())) for both in at]
    spread = [float(both[:, 1].std(ddof=1)) for both in at] if len(curves) > 1 else []
    return Series(label, points, spread, index)


def integer_bins(values: np.ndarray, most: int) -> np.ndarray:
    """Edges of at most `most` bins for integers, halfway between them."""
    width = max(1, -(-int(np.ptp(values) + 1) // most))
    return np.arange(values.min() - 0.5, values.max() + width, width)
