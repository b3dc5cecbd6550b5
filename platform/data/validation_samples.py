"""Training samples that are held back to choose hyperparameters: a pool at the server, or a share of each client's."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset, selected
from hedgerow.platform.data.partition import Partition


def hold_back_pool(dataset: Dataset, fraction: float, seed: int, draw: Callable[[Dataset], Partition]) -> Partition:
    """Partition of the samples that are not in the server's pool, which is drawn from the seed.

    Neither public samples of another data set nor samples of the test set enter the pool. draw: data set of the
    other samples, see `dataset.selected` -> partition. Raises UserError if the pool is empty.
    """
    total = len(dataset.y_train)
    candidates = total - dataset.public - dataset.lent
    pool = np.sort(np.random.default_rng([seed, 83]).permutation(candidates)[: round(fraction * candidates)])
    if not len(pool):
        raise UserError(
            f"task.validation.fraction: {fraction:g} of {candidates} training samples is no sample; raise it"
        )
    rest = np.setdiff1d(np.arange(total), pool)
    partition = draw(selected(dataset, rest))
    labels, public = None, partition.public
    if partition.labels is not None:
        labels = dataset.y_train.copy()
        labels[rest[: len(partition.labels)]] = partition.labels
    return replace(
        partition,
        order=rest[partition.order],
        labels=labels,
        public=None if public is None else rest[public],
        server_validation=pool,
    )


def hold_back_shares(partition: Partition, fraction: float, seed: int) -> Partition:
    """Partition in which a random share of each client's training samples is held back, drawn from the seed.

    The shares are rounded so that they add up to `fraction` of all training samples; a client keeps at least one for
    training. Raises UserError if no client has a validation sample.
    """
    sizes = partition.train_sizes
    held_back = np.diff(np.round(fraction * np.cumsum(sizes)).astype(np.int64), prepend=0)
    held_back = np.minimum(held_back, np.maximum(sizes - 1, 0))
    if not held_back.any():
        raise UserError(
            f"task.validation.fraction: {fraction:g} of the clients' {sizes.sum()} training samples is no sample; "
            "raise it"
        )
    clients = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.cumsum(sizes) - sizes
    places = np.arange(len(clients)) - starts[clients] + partition.offsets[:-1][clients]
    # Rank of each sample in a random order of its client's samples.
    ranks = np.empty(len(clients), np.int64)
    ranks[np.lexsort((np.random.default_rng([seed, 89]).random(len(clients)), clients))] = np.arange(len(clients))
    is_held_back = ranks - starts[clients] < held_back[clients]
    order = partition.order.copy()
    # Stable: both parts keep the order of the samples.
    order[places] = order[places][np.lexsort((is_held_back, clients))]
    return replace(partition, order=order, train_sizes=sizes - held_back, selection_sizes=held_back)
