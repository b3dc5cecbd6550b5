"""Accuracies of individual clients, beyond their mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.runs.seed_groups import SeedGroup
from hedgerow.platform.ui.charts import Chart, histogram, lines
from hedgerow.platform.ui.series import Series
from hedgerow.reports.sections.curves import coloured

EDGES = np.linspace(0, 1, 21)
SPLITS = np.linspace(0, 1, 41)
HISTOGRAMS = 4


def fairness(groups: Sequence[SeedGroup], alone: Sequence[SeedGroup]) -> list[Any]:
    """Clients from the lowest to the highest accuracy, the distribution of their accuracies, and its percentiles.

    alone: those that may have a histogram. Empty unless the runs record the accuracies of clients; learners of a stream
    do not.
    """
    accuracies = {
        (index, group.label): [np.array(run.record["client_accuracies"]) for run in group.runs]
        for index, group in coloured(groups)
        if all(run.record.get("client_accuracies") for run in group.runs)
    }
    if not accuracies:
        return []
    names = [group.label for group in alone]
    single = [(index, label, seeds) for (index, label), seeds in accuracies.items() if label in names]
    charts = [
        _quantiles(accuracies),
        *(_histogram(label, seeds, index) for index, label, seeds in single[:HISTOGRAMS]),
    ]
    rows = [
        {"experiment": label} | {name: _mean(seeds, of) for name, of in MEASURES.items()}
        for (_, label), seeds in accuracies.items()
    ]
    return [
        *(one for one in charts if one is not None),
        Table(rows, "Accuracies of clients, mean over seeds", [Column(name, unit="%") for name in MEASURES]),
    ]


def _tenth(accuracies: np.ndarray) -> float:
    return float(np.sort(accuracies)[: -(-len(accuracies) // 10)].mean())


MEASURES = {
    "lowest": np.min,
    "10th percentile": lambda a: np.quantile(a, 0.1),
    "25th percentile": lambda a: np.quantile(a, 0.25),
    "median": np.median,
    "75th percentile": lambda a: np.quantile(a, 0.75),
    "90th percentile": lambda a: np.quantile(a, 0.9),
    "highest": np.max,
    "mean": np.mean,
    "deviation": np.std,
    "worst 10 %": _tenth,
}


def _mean(seeds: list[np.ndarray], of: Any) -> float:
    return float(np.mean([of(accuracies) for accuracies in seeds]))


def _quantiles(known: dict[tuple[int, str], list[np.ndarray]]) -> Chart | None:
    series = []
    for (index, label), seeds in known.items():
        values = np.array([np.quantile(accuracies, SPLITS) for accuracies in seeds])
        spread = values.std(0, ddof=1).tolist() if len(seeds) > 1 else []
        points = list(zip((100 * SPLITS).tolist(), values.mean(0).tolist(), strict=True))
        series.append(Series(label, points, spread, index))
    return lines(
        "Clients from the lowest to the highest accuracy", series, "% of clients", "accuracy", "%",
        note="A flat line: all clients have the same accuracy.",
    )  # fmt: skip


def _histogram(label: str, seeds: list[np.ndarray], index: int) -> Chart:
    # Shares: of many clients, the record has quantiles instead of all accuracies.
    shares = np.mean([100 * np.histogram(accuracies, EDGES)[0] / len(accuracies) for accuracies in seeds], axis=0)
    title = f"Clients by accuracy: {label}"
    return histogram(title, EDGES.tolist(), {label: shares.tolist()}, "accuracy", "% of clients", "%", index)
