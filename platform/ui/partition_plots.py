"""Plots of a partition: samples per client and class."""

from pathlib import Path

import numpy as np

from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partition_summary import SHOWN, coverage
from hedgerow.platform.ui.plotting import save


def draw_partition(
    partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path, title: str = ""
) -> list[Path]:
    """Draw samples by client and class as a heat map, and the clients' sizes beside it; PNG and SVG at `path`."""
    counts = partition.label_counts(labels, len(class_names))
    shown = counts[:SHOWN]
    # matplotlib takes a second to import, which a run need not wait for at its start.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, max(3.0, 1.6 + 0.28 * len(class_names[:40]))), layout="constrained")
    heat, sizes = figure.subplots(1, 2, width_ratios=[4, 1])
    image = heat.imshow(shown.T, aspect="auto", cmap="viridis", interpolation="nearest", origin="lower")
    figure.colorbar(image, ax=heat, label="samples")
    of_all = f" (the first {SHOWN} of {len(counts)})" if len(counts) > SHOWN else ""
    heat.set(xlabel=f"client{of_all}", ylabel="class", title=title or f"{len(counts)} clients by class")
    if len(class_names) <= 40:
        heat.set_yticks(range(len(class_names)), class_names)
    own = partition.sizes
    sizes.hist(own, bins=_bins(own), color="#4477AA", edgecolor="white")
    sizes.set(xlabel="samples per client", ylabel="clients", title="sizes")
    sizes.spines[["top", "right"]].set_visible(False)
    return save(figure, path)


def draw_coverage(
    partition: Partition, labels: np.ndarray, class_names: tuple[str, ...], path: Path, title: str = ""
) -> list[Path]:
    """Draw, for 40, 60 and 80 % of a client's samples, how many clients need how many classes (thesis, figure A.3)."""
    from matplotlib.figure import Figure

    counts = partition.label_counts(labels, len(class_names))
    figure = Figure(figsize=(10, 3), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for axes, share in zip(panels, (0.4, 0.6, 0.8), strict=True):
        needed = coverage(counts, share)
        axes.hist(needed, bins=_bins(needed), color="#4477AA", edgecolor="white")
        axes.set(xlabel=f"classes that cover {share:.0%} of the samples")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set(ylabel="clients")
    figure.suptitle(title or f"{len(counts)} clients", fontsize="medium")
    return save(figure, path)


def _bins(sizes: np.ndarray) -> np.ndarray:
    """At most 30 bins of whole numbers, with their edges between them."""
    width = max(1, -(-int(np.ptp(sizes) + 1) // 30))
    return np.arange(sizes.min() - 0.5, sizes.max() + width, width)
