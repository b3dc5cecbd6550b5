"""Clients with few classes each and with their own test samples: ACID and ALID (PFL thesis, chapter 3)."""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.mapped_arrays import concatenated
from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partitions.scheme import PartitionScheme


class ACID(PartitionScheme):
    """Active class induced diversity: client i has `labels_per_client` consecutive classes, starting at class i.

    Class numbers wrap around. Training samples come from the data set's training set, held-out samples from its test
    set; no two clients share a sample.
    """

    needs_classes: ClassVar[bool] = True
    deals_test_samples: ClassVar[bool] = True

    clients: int = Field(100, ge=1, description="number of clients, m")
    labels_per_client: int = Field(ge=1, description="number of classes of each client")
    train: int = Field(500, ge=1, description="training samples of each client, spread evenly over its classes")
    test: int = Field(100, ge=1, description="test samples of each client")

    def prepare(self, dataset: Dataset) -> Dataset:
        """Appends the test set to the training set, so that clients can own test samples."""
        return replace(
            dataset,
            x_train=concatenated([dataset.x_train, dataset.x_test]),
            y_train=np.concatenate([dataset.y_train, dataset.y_test]),
            # Test samples have no natural owners, and the scheme makes splits of its own.
            train_clients=None,
            splits=None,
            lent=len(dataset.y_test),
        )

    def draw(self, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0) -> Partition:
        """Deals each client its training samples, then its held-out samples. ACID and ALID deal the same samples."""
        k, m = self.labels_per_client, self.clients
        if k > classes:
            raise UserError(f"task.partition.labels_per_client: {k} is more than the {classes} classes; lower it")
        if not lent:
            raise UserError(
                f"task.partition.kind: {self.kind} cannot be one of several kinds in a search; set it alone"
            )
        rng = np.random.default_rng([seed, 67])
        first = len(labels) - lent
        own = (np.arange(m)[:, None] + np.arange(k)) % classes  # (m, k)
        train = _deal(labels[:first], own, self.train, "train", rng)
        test = _deal(labels[first:], own, self.test, "test", rng)
        order = np.concatenate([rows for mine, held in zip(train, test, strict=True) for rows in (mine, first + held)])
        owner_labels = self.seen(labels, order.reshape(m, -1), own, classes, seed)
        return Partition(
            order, np.arange(m + 1) * (self.train + self.test), np.full(m, self.train), labels=owner_labels
        )

    def seen(self, labels: np.ndarray, rows: np.ndarray, own: np.ndarray, classes: int, seed: int) -> np.ndarray | None:
        """Labels of all samples as their owners see them; None: unchanged.

        rows (m, samples): sample indices of each client. own (m, k): classes of each client.
        """
        return None


class ALID(ACID):
    """Anonymous label induced diversity: ACID in which each client numbers the classes in its own way."""

    permuted: Literal["all", "own"] = Field(
        "all", description="classes that each client permutes at random: all, or only its own"
    )

    def seen(self, labels: np.ndarray, rows: np.ndarray, own: np.ndarray, classes: int, seed: int) -> np.ndarray | None:
        """Labels renumbered by each client for its own samples."""
        rng = np.random.default_rng([seed, 73])
        client_labels = labels.copy()
        for indices, subset in zip(rows, own, strict=True):
            names = np.arange(classes)
            if self.permuted == "own":
                names[subset] = rng.permutation(subset)
            else:
                names = rng.permutation(names)
            client_labels[indices] = names[labels[indices]]
        return client_labels


def _deal(labels: np.ndarray, own: np.ndarray, each: int, key: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Deals `each` shuffled samples to each client, equally over its classes; the first classes take the remainder."""
    counts = np.broadcast_to(each // own.shape[1] + (np.arange(own.shape[1]) < each % own.shape[1]), own.shape)
    parts: list[list[np.ndarray]] = [[] for _ in own]
    for label in np.unique(own):
        pool = rng.permutation(np.flatnonzero(labels == label))
        clients, places = np.nonzero(own == label)
        ends = np.cumsum(counts[clients, places])
        if ends[-1] > len(pool):
            raise UserError(
                f"task.partition.{key}: {len(clients)} clients need {ends[-1]} samples of class {label}, but the data "
                f"set has {len(pool)}; lower it or the number of clients"
            )
        for client, rows in zip(clients, np.split(pool, ends), strict=False):
            parts[client].append(rows)
    return [rng.permutation(np.concatenate(part)) for part in parts]
