"""Plots of a partition: samples per client and class, and classes that cover a client's samples."""

from pathlib import Path

import numpy as np

from hedgerow.platform.common.numbers import short_percent
from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partition_summary import SHOWN, coverage
from hedgerow.platform.ui.charts import Chart, figure, heat, histogram
from hedgerow.platform.ui.plotting import save
from hedgerow.platform.ui.series import integer_bins

BINS = 30
"""Maximum number of bins of a histogram."""

NAMED = 40
"""Number of rows of the picture if there are more than `MANY` classes."""

MANY = 100

SKEWED = 10
"""The scale of sizes is logarithmic if the largest client has this many times the median of the clients' samples."""


def draw_partition(partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path) -> list[Path]:
    """Draw the samples by client and class as a heat map, and a histogram of client sizes, as PNG and SVG.

    Of many clients, some of every size are shown, ordered by size; of many classes, the most frequent ones.
    """
    counts = partition.label_counts(labels, len(class_names))
    clients, of_clients = _shown_clients(partition.sizes)
    classes, of_classes = np.arange(len(class_names)), ""
    if len(class_names) > MANY:
        classes = np.sort(np.argsort(-counts.sum(0), kind="stable")[:NAMED])
        of_classes = f" (the {NAMED} most frequent of {len(class_names)})"
    shown, names = counts[clients][:, classes], [class_names[label] for label in classes]
    title = f"{len(counts)} clients by class, at most {shown.max()} samples"
    picture = heat(title, shown.tolist(), names, f"client{of_clients}", f"class{of_classes}")
    sizes = _histogram("sizes", partition.sizes, "samples per client")
    return save(figure([picture, sizes], titles=True, width=6), path)


def _shown_clients(sizes: np.ndarray) -> tuple[np.ndarray, str]:
    """Clients in the picture, and the words that say which they are: all, or some of every size."""
    if len(sizes) <= SHOWN:
        return np.arange(len(sizes)), ""
    # Clients of one size are shuffled: evenly spaced ones could all have the same classes.
    by_size = np.lexsort((np.random.default_rng(0).random(len(sizes)), sizes))
    places = np.linspace(0, len(sizes) - 1, SHOWN).round().astype(int)
    return by_size[places], f" ({SHOWN} of {len(sizes)}, ordered by size)"


def draw_coverage(
    partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path, title: str
) -> list[Path]:
    """Draw how many clients need how many classes to cover 40, 60 and 80 % of their samples (thesis, figure A.3)."""
    counts = partition.label_counts(labels, len(class_names))
    charts = [
        _histogram(title, coverage(counts, share), f"classes that cover {short_percent(share)} of the samples")
        for share in (0.4, 0.6, 0.8)
    ]
    return save(figure(charts, titles=True), path)


def _histogram(title: str, values: np.ndarray, x_label: str) -> Chart:
    """Histogram of integers over the clients."""
    number, log = min(BINS, 5 + int(2 * len(values) ** 0.5)), bool(values.max() > SKEWED * np.median(values))
    edges = integer_bins(values, number)
    if log:
        edges = np.unique(np.round(np.geomspace(max(values.min(), 1), values.max() + 1, number))) - 0.5
    counts = np.histogram(values, edges)[0].tolist()
    return histogram(title, edges.tolist(), {"clients": counts}, x_label, "clients", whole=True, log=log)
