"""The curves of experiments: lines of means over seeds, with bands of their standard deviation."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from hedgerow.platform.tracking.summary import reported
from hedgerow.platform.ui.plots import STREAM_CURVES, points, smoothed
from hedgerow.reports.analysis.comparison import is_share
from hedgerow.reports.analysis.run_reader import Run
from hedgerow.reports.analysis.seed_groups import Group
from hedgerow.reports.charts.charts import Figure, lines
from hedgerow.reports.charts.series import Series

SHOWN = 7
"""Experiments with a line of their own, at most: the eighth colour, and those after it, are Hedge's."""

NAMES = {
    "test_accuracy": "test accuracy",
    "test_loss": "test loss",
    "train_loss": "training loss",
    "client_accuracy": "mean accuracy of clients",
    "client_accuracy_worst10": "accuracy of the worst 10 % of clients",
    "client_accuracy_highest": "highest accuracy of a client",
    "client_accuracy_lowest": "lowest accuracy of a client",
    "client_loss": "mean loss of clients",
    "server_test_accuracy": "test accuracy of the server's model",
    "server_test_loss": "test loss of the server's model",
}


def curves(groups: Sequence[Group], learners: Sequence[Group] = ()) -> list[Figure]:
    """All that there is to draw of these experiments. learners: what Hedge itself achieved."""
    numbered = [*enumerate(learners, SHOWN), *enumerate(groups)]
    if all(group.first.is_stream for group in groups):
        return _figures(_stream(numbered, key, label) for key, label in STREAM_CURVES.items())

    def by_round(key: str) -> Figure | None:
        label = NAMES.get(key, key.replace("_", " "))
        series = [_series(group, i, key) for i, group in numbered]
        share, title = is_share(key), f"{label} by round".capitalize()
        return lines(title, series, "round", label, share, _targets(groups, key), late=share)

    # A run that transmits nothing has no curve against it.
    sent = [_series(group, i, "test_accuracy", _sent) for i, group in numbered if _sent(group.first)[-1]]
    traffic = lines(
        "Test accuracy by traffic", sent, "transmitted parameters (down + up)", "test accuracy", True,
        _targets(groups, "test_accuracy"), late=True,
    )  # fmt: skip
    others = dict.fromkeys(name for group in groups for run in group.runs for name in reported(run.records))
    found = [by_round(key) for key in [*NAMES, *others]]
    # Traffic second, beside the rounds.
    return _figures([found[0], traffic, *found[1:]])


def _targets(groups: Sequence[Group], key: str) -> list[float]:
    """What the files ask of this metric."""
    return sorted({t for group in groups for t in group.first.targets if group.first.target_metric == key})


def _stream(numbered: Sequence[tuple[int, Group]], key: str, label: str) -> Figure | None:
    series = [_series(group, i, key) for i, group in numbered]
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
    return Series(group.label, means, spread, index, strong=index >= SHOWN)


def _sent(run: Run) -> list[float]:
    return list(accumulate(float(r.get("scalars_down", 0) + r.get("scalars_up", 0)) for r in run.records))


def _figures(found: Any) -> list[Figure]:
    return [figure for figure in found if figure is not None]
