"""The natural clients of a data set, with the validation and test samples that the data give to each of them."""

from dataclasses import replace

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.mapped_arrays import concatenated
from hedgerow.platform.data.partition import Partition
from hedgerow.platform.data.partitions.scheme import SplitScheme, grouped


class Natural(SplitScheme):
    """The natural clients that the data set itself defines.

    If the data set divides the samples of each client into training, validation and test samples, clients keep this
    division: `client_test_fraction` above 0 replaces a client's test samples by samples drawn from its training
    samples, and `upper_level_fraction` above 0 its validation samples. The test set of all clients together stays the
    same.
    """

    group: int = Field(1, ge=1, description="number of natural clients that make one client, in the order of their ids")

    def prepare(self, dataset: Dataset) -> Dataset:
        """Appends the test samples to the training samples, so that each natural client can own its test samples."""
        if not self._takes_tests(dataset):
            return dataset
        known = np.zeros(len(dataset.y_train), np.uint8) if dataset.splits is None else dataset.splits
        return replace(
            dataset,
            x_train=concatenated([dataset.x_train, dataset.x_test]),
            y_train=np.concatenate([dataset.y_train, dataset.y_test]),
            train_clients=np.concatenate([dataset.train_clients, dataset.test_clients]),
            splits=np.concatenate([known, np.full(len(dataset.y_test), 2, np.uint8)]),
            lent=len(dataset.y_test),
        )

    def own_splits(self, dataset: Dataset) -> np.ndarray | None:
        """Splits of the samples. Raises UserError if `prepare` did not append the clients' own test samples."""
        if self._takes_tests(dataset) and not dataset.lent:
            raise UserError(
                "task.partition.kind: natural, with the test samples of each client, cannot be one of several kinds in "
                "a search; set it alone, or hold samples out with `client_test_fraction`"
            )
        return dataset.splits

    def _takes_tests(self, dataset: Dataset) -> bool:
        return dataset.test_clients is not None and dataset.train_clients is not None and not self.client_test_fraction

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        if natural is None:
            raise UserError(
                "task.partition.kind: this data set has no natural clients; choose iid, dirichlet or labels"
            )
        _, owners = np.unique(natural, return_inverse=True)
        owners = owners // self.group
        return [rng.permutation(g) for g in grouped(owners, owners.max() + 1)]

    def draw(
        self,
        labels: np.ndarray,
        classes: int,
        natural: np.ndarray | None,
        seed: int,
        lent: int = 0,
        splits: np.ndarray | None = None,
    ) -> Partition:
        """Draws training samples as other schemes do, and adds each client's own validation and test samples.

        splits: split of each sample, see `Dataset.splits`; None: all samples are for training. A natural client without
        training samples is left out.
        """
        if splits is None or natural is None:
            return super().draw(labels, classes, natural, seed, lent)
        stages = np.where((splits == 1) & (self.upper_level_fraction > 0), 0, splits)
        rows = np.flatnonzero(stages == 0)
        if not len(rows):
            raise UserError("task.data: no natural client has training samples; add them, or choose another partition")
        partition = super().draw(labels[rows], classes, natural[rows], seed)
        own = np.flatnonzero((stages == 1) | (stages == 2) & (self.client_test_fraction == 0))
        return _with_own(partition, rows, own, stages, natural, labels)


def _with_own(
    partition: Partition, rows: np.ndarray, own: np.ndarray, stages: np.ndarray, natural: np.ndarray, labels: np.ndarray
) -> Partition:
    """Partition with each natural client's own validation (stage 1) and held-out samples (stage 2) in addition.

    rows: sample of each index of the partition. own: samples to add. natural, stages, labels: of all samples.
    """
    order = rows[partition.order]
    clients = np.repeat(np.arange(len(partition)), partition.sizes)
    ids, first = np.unique(natural[order], return_index=True)
    places = np.minimum(np.searchsorted(ids, natural[own]), len(ids) - 1)
    own, places = (values[ids[places] == natural[own]] for values in (own, places))
    within = np.arange(len(order)) - partition.offsets[clients]
    validation = (
        np.zeros(len(partition), np.int64) if partition.validation_sizes is None else partition.validation_sizes
    )
    dealt = [within >= partition.train_sizes[clients], within >= (partition.train_sizes + validation)[clients]]
    order = np.concatenate([order, own])
    clients = np.concatenate([clients, clients[first][places]])
    stage = np.concatenate([sum(dealt), stages[own]])
    sizes = np.zeros((3, len(partition)), np.int64)
    np.add.at(sizes, (stage, clients), 1)
    noisy = None
    if partition.labels is not None:
        noisy = labels.copy()
        noisy[rows] = partition.labels
    return Partition(
        order[np.lexsort((stage, clients))],
        np.concatenate([[0], np.cumsum(sizes.sum(0))]),
        sizes[0],
        sizes[1] if sizes[1].any() else None,
        noisy,
    )
