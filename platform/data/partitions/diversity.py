"""Devices with few classes each, and with test samples of their own (PFL thesis, chapter 3): ACID and ALID."""

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partitions.scheme import PartitionScheme


class ACID(PartitionScheme):
    """Active class induced diversity: client i has the classes from i on, modulo their number.

    Its training samples are of the data set's training set, those it holds out of the test set; nobody shares one.
    """

    deals_test_samples: ClassVar[bool] = True

    clients: int = Field(100, ge=1, description="number of clients, m")
    labels_per_client: int = Field(ge=1, description="classes that each client has")
    train: int = Field(500, ge=1, description="training samples of a client, as many of each of its classes as can be")
    test: int = Field(100, ge=1, description="test samples of a client")

    def prepare(self, dataset: Dataset) -> Dataset:
        """The test set's samples behind the training set's, where clients can have them."""
        return replace(
            dataset,
            x_train=np.concatenate([dataset.x_train, dataset.x_test]),
            y_train=np.concatenate([dataset.y_train, dataset.y_test]),
            # Test samples have no natural owners.
            train_clients=None,
            lent=len(dataset.y_test),
        )

    def draw(self, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0) -> Partition:
        """Client by client the samples for training, then those held out. ACID and ALID deal the same samples."""
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
        train = _dealt(labels[:first], own, self.train, "train", rng)
        test = _dealt(labels[first:], own, self.test, "test", rng)
        order = np.concatenate([rows for mine, held in zip(train, test, strict=True) for rows in (mine, first + held)])
        seen = self.seen(labels, order.reshape(m, -1), own, classes, seed)
        return Partition(order, np.arange(m + 1) * (self.train + self.test), np.full(m, self.train), labels=seen)

    def seen(self, labels: np.ndarray, rows: np.ndarray, own: np.ndarray, classes: int, seed: int) -> np.ndarray | None:
        """All labels as their owners see them; None: as they are.

        rows (m, samples): of each client. own (m, k): its classes.
        """
        return None


class ALID(ACID):
    """Anonymous label induced diversity: ACID where each client numbers the classes in its own way."""

    permuted: Literal["all", "own"] = Field(
        "all", description="what a client's random permutation is of: all classes, or those that it has"
    )

    def seen(self, labels: np.ndarray, rows: np.ndarray, own: np.ndarray, classes: int, seed: int) -> np.ndarray | None:
        """Renumbered by every client for its samples."""
        rng = np.random.default_rng([seed, 73])
        seen = labels.copy()
        for mine, few in zip(rows, own, strict=True):
            names = np.arange(classes)
            if self.permuted == "own":
                names[few] = rng.permutation(few)
            else:
                names = rng.permutation(names)
            seen[mine] = names[labels[mine]]
        return seen


def _dealt(labels: np.ndarray, own: np.ndarray, each: int, key: str, rng: np.random.Generator) -> list[np.ndarray]:
    """`each` samples for each client, shuffled; of those that remain, one more of each of its first classes."""
    counts = np.broadcast_to(each // own.shape[1] + (np.arange(own.shape[1]) < each % own.shape[1]), own.shape)
    parts: list[list[np.ndarray]] = [[] for _ in own]
    for label in np.unique(own):
        pool = rng.permutation(np.flatnonzero(labels == label))
        clients, places = np.nonzero(own == label)
        ends = np.cumsum(counts[clients, places])
        if ends[-1] > len(pool):
            raise UserError(
                f"task.partition.{key}: {len(clients)} clients want {ends[-1]} samples of class {label}, the data set "
                f"has {len(pool)}; lower it or the number of clients"
            )
        for client, rows in zip(clients, np.split(pool, ends), strict=False):
            parts[client].append(rows)
    return [rng.permutation(np.concatenate(part)) for part in parts]
