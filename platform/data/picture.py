"""A partition to look at: a table and a client-by-class picture."""

from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition
from hedgerow.platform.figures import save

SHOWN = 100
"""Clients in the picture, at most."""


def coverage(counts: np.ndarray, share: float) -> np.ndarray:
    """(m,): how many classes, largest first, cover `share` of each client's samples. counts: (m, classes).

    The class-coverage histograms of the thesis (figure A.3) count these.
    """
    ordered = np.cumsum(-np.sort(-counts, axis=1), axis=1)
    return 1 + (ordered < share * ordered[:, -1:] - 1e-9).sum(axis=1)


def partition_table(partition: Partition, labels: np.ndarray, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """One row per client: samples, training samples, classes present, classes that cover 80 %, largest class."""
    counts = partition.label_counts(labels, len(class_names))
    covered = coverage(counts, 0.8)
    return [
        {
            "client": client,
            "samples": int(row.sum()),
            "for training": int(partition.train_sizes[client]),
            "classes": int((row > 0).sum()),
            "cover 80 %": int(covered[client]),
            "largest class": f"{class_names[row.argmax()]} ({row.max() / max(row.sum(), 1):.0%})",
        }
        for client, row in enumerate(counts)
    ]


def partition_record(partition: Partition, dataset: Dataset) -> dict[str, Any]:
    """What a report draws of a partition: the clients' sizes, from the smallest, and the first clients' classes."""
    sizes = np.sort(partition.sizes)
    some = sizes if len(sizes) <= 1000 else np.quantile(sizes, np.linspace(0, 1, 1000))
    return {
        "clients": len(partition),
        "samples": int(sizes.sum()),
        "sizes": [int(size) for size in some],
        "class_names": list(dataset.class_names),
        "counts": partition.label_counts(dataset.y_train, len(dataset.class_names), SHOWN).tolist(),
    }


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
