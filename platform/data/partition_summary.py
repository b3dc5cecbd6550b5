"""Summaries of a partition: a table, and a record for a client-by-class picture."""

from typing import Any

import numpy as np

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition

SHOWN = 100
"""Maximum number of clients in the picture."""


def coverage(counts: np.ndarray, share: float) -> np.ndarray:
    """Number of classes, largest first, that cover `share` of each client's samples, (m,). counts: (m, classes).

    The class-coverage histograms of the thesis (figure A.3) show these numbers.
    """
    ordered = np.cumsum(-np.sort(-counts, axis=1), axis=1)
    return 1 + (ordered < share * ordered[:, -1:] - 1e-9).sum(axis=1)


def partition_table(partition: Partition, labels: np.ndarray, class_names: tuple[str, ...]) -> list[dict[str, Any]]:
    """One row per client: samples, training samples, classes present, classes that cover 80 %, largest class.

    class_names: empty if the targets are not classes.
    """
    if not class_names:
        sizes = zip(partition.sizes.tolist(), partition.train_sizes.tolist(), strict=True)
        return [{"client": i, "samples": size, "training samples": train} for i, (size, train) in enumerate(sizes)]
    counts = partition.label_counts(labels, len(class_names))
    covered = coverage(counts, 0.8)
    return [
        {
            "client": client,
            "samples": int(row.sum()),
            "training samples": int(partition.train_sizes[client]),
            "classes": int((row > 0).sum()),
            "classes for 80 %": int(covered[client]),
            "largest class": class_names[row.argmax()],
            "share of the largest class": float(row.max() / max(row.sum(), 1)),
        }
        for client, row in enumerate(counts)
    ]


def partition_record(partition: Partition, dataset: Dataset) -> dict[str, Any]:
    """Data of a report's charts: the sizes of clients in ascending order, and class counts of the first clients.

    There are no counts if the targets are not classes.
    """
    sizes = np.sort(partition.sizes)
    names = known_classes(dataset)
    quantiles = sizes if len(sizes) <= 1000 else np.quantile(sizes, np.linspace(0, 1, 1000))
    return {
        "clients": len(partition),
        "samples": int(sizes.sum()),
        "sizes": [int(size) for size in quantiles],
        "class_names": list(names),
        "counts": partition.label_counts(dataset.y_train, len(names), SHOWN).tolist() if names else [],
    }


def known_classes(dataset: Dataset) -> tuple[str, ...]:
    """Names of the classes; empty if the targets are not classes."""
    return dataset.class_names if dataset.targets == "classes" else ()
