"""A partition to look at: a table and a client-by-class picture."""

from typing import Any

import numpy as np

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition

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
