"""The curves of experiments: lines of means over seeds, with bands of their standard deviation."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hedgerow.platform.figures import STREAM_CURVES, points, smoothed
from hedgerow.platform.report import reported
from hedgerow.reports.compare import is_share
from hedgerow.reports.figures import Figure, lines
from hedgerow.reports.groups import Group
from hedgerow.reports.read import Record, Run
from hedgerow.reports.series import Series

SHOWN = 7
"""Experiments with a line of their own, at most: the eighth colour is Hedge's."""

NAMES = {
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "client_accuracy": "mean accuracy of clients",
    "client_accuracy_worst10": "accuracy of the worst 10 % of clients",
}


def curves(groups: Sequence[Group], extra: Sequence[Series] = ()) -> list[Figure]:
    """All that there is to draw of these experiments. extra: further lines of test accuracy by round."""
    if all(group.first.is_stream for group in groups):
        return _figures(_stream(groups, key, label) for key, label in STREAM_CURVES.items())
    targets = sorted({t for g in groups for t in g.first.targets if g.first.target_metric == "test_accuracy"})

    def by_round(key: str) -> Figure | None:
        label = NAMES.get(key, key.replace("_", " "))
        series = [_series(group, i, key) for i, group in enumerate(groups)]
        more = list(extra) if key == "test_accuracy" else []
        aims = targets if key == "test_accuracy" else []
        return lines(
            f"{label} by round".capitalize(), [*more, *series], "round", label, is_share(key), aims, late=is_share(key)
        )

    sent = [_series(group, i, "test_accuracy", _sent) for i, group in enumerate(groups)]
    traffic = lines(
        "Test accuracy by traffic", sent, "transmitted parameters (down + up)", "test accuracy", True, targets,
        late=True,
    )  # fmt: skip
    others = dict.fromkeys(name for group in groups for run in group.runs for name in reported(run.records))
    keys = [*NAMES, *others]
    found = [by_round(key) for key in keys]
    # Traffic second, beside the rounds; a run that transmits nothing has none.
    any_sent = any(_sent(group.first)[-1] for group in groups)
    return _figures([found[0], traffic if any_sent else None, *found[1:]])


def _stream(groups: Sequence[Group], key: str, label: str) -> Figure | None:
    series = [_series(group, i, key) for i, group in enumerate(groups)]
    return lines(label[0].upper() + label[1:], series, "task", label, is_share(key))


def _series(group: Group, index: int, key: str, position: Callable[[Run], list[float]] | None = None) -> Series:
    """Mean and deviation over the seeds that have it, round by round; places are means, too."""
    where: dict[int, list[float]] = {}
    values: dict[int, list[float]] = {}
    for run in group.runs:
        places = position(run) if position else [record["round"] for record in run.records]
        at = dict(zip((record["round"] for record in run.records), places, strict=True))
        found = points(run.records, key)
        for number, value in smoothed(found) if key == "efficiency_points" else found:
            if value is not None:
                where.setdefault(number, []).append(at[number])
                values.setdefault(number, []).append(value)
    # Where a run has ended before the others, the mean of the rest would leap: the line ends with the first.
    numbers = [number for number in sorted(values) if len(values[number]) == len(group.runs)]
    means = [(float(np.mean(where[n])), float(np.mean(values[n]))) for n in numbers]
    spread = [float(np.std(values[n], ddof=1)) for n in numbers] if len(group.runs) > 1 else []
    return Series(group.label, means, spread, index)


def _sent(run: Run) -> list[float]:
    return list(accumulate(float(r.get("scalars_down", 0) + r.get("scalars_up", 0)) for r in run.records))


def hedge_series(hedge: Sequence[Record], index: int) -> Series:
    """Hedge's own expected accuracy."""
    found: list[tuple[float, float]] = [
        (record["round"], record["expected"]["test_accuracy"])
        for record in hedge
        if record["expected"].get("test_accuracy") is not None
    ]
    return Series("Hedge, expected", found, [], index, strong=True)


def _figures(found: Any) -> list[Figure]:
    return [figure for figure in found if figure is not None]
