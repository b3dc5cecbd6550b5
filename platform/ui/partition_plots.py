"""Plots of a partition: samples per client and class, and classes that cover a client's samples."""

from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partition_summary import SHOWN, coverage
from hedgerow.platform.ui.plotting import COLOURS, new_figure, save, tidy
from hedgerow.platform.ui.series import integer_bins

BINS = 30
"""Maximum number of bins of a histogram."""


def draw_partition(
    partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path, title: str = ""
) -> list[Path]:
    """Draw the samples by client and class as a heat map, with a histogram of client sizes, as PNG and SVG."""
    counts = partition.label_counts(labels, len(class_names))
    shown = counts[:SHOWN]
    height = max(3.0, 1.6 + 0.28 * len(class_names[:40]))
    figure = new_figure(figsize=(10, height), layout="constrained")
    heat, sizes = figure.subplots(1, 2, width_ratios=[4, 1])
    image = heat.imshow(shown.T, aspect="auto", cmap="viridis", interpolation="nearest", origin="lower")
    figure.colorbar(image, ax=heat, label="samples")
    of_all = f" (the first {SHOWN} of {len(counts)})" if len(counts) > SHOWN else ""
    heat.set(xlabel=f"client{of_all}", ylabel="class", title=title or f"{len(counts)} clients by class")
    if len(class_names) <= 40:
        heat.set_yticks(range(len(class_names)), class_names)
    _histogram(sizes, partition.sizes)
    sizes.set(xlabel="samples per client", ylabel="clients", title="sizes")
    return save(figure, path)


def draw_coverage(
    partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path, title: str = ""
) -> list[Path]:
    """Draw how many clients need how many classes to cover 40, 60 and 80 % of their samples (thesis, figure A.3)."""
    counts = partition.label_counts(labels, len(class_names))
    figure = new_figure(figsize=(10, 3), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, share in zip(panels, (0.4, 0.6, 0.8), strict=True):
        _histogram(axes, coverage(counts, share))
        axes.set(xlabel=f"classes that cover {share:.0%} of the samples")
        axes.xaxis.get_major_locator().set_params(integer=True)
    panels[0].set(ylabel="clients")
    figure.suptitle(title or f"{len(counts)} clients", fontsize="medium")
    return save(figure, path)


def _histogram(axes: Any, values: np.ndarray) -> None:
    axes.hist(values, bins=integer_bins(values, BINS), color=COLOURS[0], edgecolor="white")
    tidy(axes, grid=False)
