"""Devices with few classes each, and with test samples of their own (PFL thesis, chapter 3): ACID and ALID."""

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.dataset import Dataset


class ACID(Section):
    """Active class induced diversity: client i has the classes from i on, modulo their number.

    Its training samples are of the data set's training set, those it holds out of the test set; nobody shares one.
    """

    kind: Literal["acid"] = "acid"
    clients: int = Field(100, ge=1, description="number of clients, m")
    labels_per_client: int = Field(ge=1, description="classes that each client has")
    train: int = Field(500, ge=1, description="training samples of a client, as many of each of its classes as can be")
    test: int = Field(100, ge=1, description="test samples of a client")


class ALID(ACID):
    """Anonymous label induced diversity: ACID where each client numbers the classes in its own way."""

    kind: Literal["alid"] = "alid"  # type: ignore[assignment]
    permuted: Literal["all", "own"] = Field(
        "all", description="what a client's random permutation is of: all classes, or those that it has"
    )


def with_test_samples(dataset: Dataset) -> Dataset:
    """The same with the test set's samples behind the training set's, where clients can have them."""
    return replace(
        dataset,
        x_train=np.concatenate([dataset.x_train, dataset.x_test]),
        y_train=np.concatenate([dataset.y_train, dataset.y_test]),
        # Not of the test samples: nobody can be said to own these.
        train_clients=None,
        lent=len(dataset.y_test),
    )


def deal_diverse(
    config: ACID, labels: np.ndarray, classes: int, lent: int, seed: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """The samples, client by client, of each first those for training; and all labels as clients see them, or None.

    labels: of the samples from `with_test_samples`; lent: how many of them, the last ones, are the test set's. With the
    same seed, ACID and ALID deal the same samples. Raises UserError when there are not the classes or the samples.
    """
    k = config.labels_per_client
    if k > classes:
        raise UserError(f"task.partition.labels_per_client: {k} is more than the {classes} classes; lower it")
    if not lent:
        raise UserError(f"task.partition.kind: {config.kind} cannot be one of several kinds in a search; set it alone")
    rng = np.random.default_rng([seed, 67])
    first = len(labels) - lent
    own = (np.arange(config.clients)[:, None] + np.arange(k)) % classes  # (m, k)
    train = _dealt(labels[:first], own, config.train, "train", rng)
    test = _dealt(labels[first:], own, config.test, "test", rng)
    order = np.concatenate([rows for mine, held in zip(train, test, strict=True) for rows in (mine, first + held)])
    if not isinstance(config, ALID):
        return order, None
    return order, _anonymous(labels, order.reshape(config.clients, -1), own, classes, config.permuted, seed)


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


def _anonymous(
    labels: np.ndarray, rows: np.ndarray, own: np.ndarray, classes: int, permuted: str, seed: int
) -> np.ndarray:
    """The labels, renumbered by every client for its samples. rows (m, samples); own (m, k): its classes."""
    rng = np.random.default_rng([seed, 73])
    seen = labels.copy()
    for mine, few in zip(rows, own, strict=True):
        names = np.arange(classes)
        if permuted == "own":
            names[few] = rng.permutation(few)
        else:
            names = rng.permutation(names)
        seen[mine] = names[labels[mine]]
    return seen
