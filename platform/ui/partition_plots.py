"""Plots of a partition: samples per client and class, and classes that cover a client's samples."""

from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.common.percent import short_percent
from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partition_summary import SHOWN, coverage
from hedgerow.platform.ui.plotting import COLOURS, new_figure, save, tidy
from hedgerow.platform.ui.series import integer_bins

BINS = 30
"""Maximum number of bins of a histogram."""

NAMED = 40
"""Maximum number of classes with names, and number of rows if there are more than `MANY` classes."""

MANY = 100

SKEWED = 10
"""Scales are logarithmic if the largest client has this many times the median of the clients' samples."""


def draw_partition(
    partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path, title: str = ""
) -> list[Path]:
    """Draw the samples by client and class as a heat map, with a histogram of client sizes, as PNG and SVG.

    Of many clients, some of every size are shown, ordered by size; of many classes, the most frequent ones.
    """
    counts = partition.label_counts(labels, len(class_names))
    is_skewed = bool(partition.sizes.max() > SKEWED * np.median(partition.sizes))
    clients, of_clients = _shown_clients(partition.sizes)
    classes, of_classes = np.arange(len(class_names)), ""
    if len(class_names) > MANY:
        classes = np.sort(np.argsort(-counts.sum(0), kind="stable")[:NAMED])
        of_classes = f" (the {NAMED} most frequent of {len(class_names)})"
    shown = counts[clients][:, classes]
    height = max(3.0, 1.6 + 0.28 * min(len(classes), NAMED))
    figure = new_figure(figsize=(10, height), layout="constrained")
    heat, sizes = figure.subplots(1, 2, width_ratios=[4, 1])
    image = heat.imshow(
        np.ma.masked_equal(shown.T, 0),
        aspect="auto",
        cmap="viridis",
        norm="log" if is_skewed else None,
        vmin=None if is_skewed else 0,
        interpolation="nearest",
        origin="lower",
    )
    figure.colorbar(image, ax=heat, label="samples (white: none)")
    xlabel, ylabel = f"client{of_clients}", f"class{of_classes}"
    heat.set(xlabel=xlabel, ylabel=ylabel, title=title or f"{len(counts)} clients by class")
    _whole_numbers(heat.xaxis, heat.yaxis)
    if len(classes) <= NAMED:
        heat.set_yticks(range(len(classes)), [class_names[label] for label in classes])
    _histogram(sizes, partition.sizes, is_skewed)
    sizes.set(xlabel="samples per client", ylabel="clients", title="sizes")
    return save(figure, path)


def _shown_clients(sizes: np.ndarray) -> tuple[np.ndarray, str]:
    """Clients in the picture, and the words that say which they are: all, or some of every size."""
    if len(sizes) <= SHOWN:
        return np.arange(len(sizes)), ""
    # Clients of one size are shuffled: evenly spaced ones could all have the same classes.
    by_size = np.lexsort((np.random.default_rng(0).random(len(sizes)), sizes))
    places = np.linspace(0, len(sizes) - 1, SHOWN).round().astype(int)
    return by_size[places], f" ({SHOWN} of {len(sizes)}, ordered by size)"


def draw_coverage(
    partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path, title: str = ""
) -> list[Path]:
    """Draw how many clients need how many classes to cover 40, 60 and 80 % of their samples (thesis, figure A.3)."""
    counts = partition.label_counts(labels, len(class_names))
    figure = new_figure(figsize=(10, 3), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, share in zip(panels, (0.4, 0.6, 0.8), strict=True):
        _histogram(axes, coverage(counts, share))
        axes.set(xlabel=f"classes that cover {short_percent(share)} of the samples")
    panels[0].set(ylabel="clients")
    figure.suptitle(title or f"{len(counts)} clients", fontsize="medium")
    return save(figure, path)


def _histogram(axes: Any, values: np.ndarray, is_logarithmic: bool = False) -> None:
    number = min(BINS, 5 + int(2 * len(values) ** 0.5))
    bins: Any = integer_bins(values, number)
    if is_logarithmic:
        bins = np.unique(np.round(np.geomspace(max(values.min(), 1), values.max() + 1, number))) - 0.5
        axes.set_xscale("log")
    axes.hist(values, bins=bins, color=COLOURS[0], edgecolor="white")
    _whole_numbers(axes.yaxis, *([] if is_logarithmic else [axes.xaxis]))
    tidy(axes, grid=False)


def _whole_numbers(*axes: Any) -> None:
    for axis in axes:
        axis.get_major_locator().set_params(integer=True, min_n_ticks=1)
