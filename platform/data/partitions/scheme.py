"""The base of all partition schemes: a section of the experiment file that deals samples to clients."""

from dataclasses import replace
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition


class PartitionScheme(Section):
    """How samples are dealt to clients. Its fields are its options in the experiment file."""

    is_stream: ClassVar[bool] = False
    """Whether it makes a stream of tasks, one per round, in place of clients."""

    deals_test_samples: ClassVar[bool] = False
    """Whether clients have samples of the data set's test set, too."""

    kind: str = ""
    """As in the experiment file, which stamps it on."""

    def prepare(self, dataset: Dataset) -> Dataset:
        """The data set whose training samples are dealt. Raises UserError when the scheme does not fit it."""
        return dataset

    def draw(self, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0) -> Partition:
        """Draw a partition, from the seed alone.

        labels: of the training samples of the prepared data set. natural: their natural client ids, or None. lent: how
        many of the samples, the last ones, are the test set's. Raises UserError when the scheme does not fit the data.
        """
        raise NotImplementedError


class SplitScheme(PartitionScheme):
    """Clients with samples of the training set, some of which they may keep for validation and for their evaluation.

    A subclass says in `assign` which samples each client has.
    """

    holdout: float = Field(0.0, ge=0, lt=1, description="share of its samples that a client keeps for its evaluation")
    validation: float = Field(
        0.0, ge=0, lt=1, description="share that it keeps for validation: the upper level of bilevel problems"
    )
    validation_by: Literal["client", "class"] = Field(
        "client",
        description="whose samples a client validates with: its own; or, dealt anew from those of all clients, such of "
        "as few classes as can be",
    )

    label_noise: float | list[float] = Field(
        0.0,
        description="share of each client's training labels that are replaced by another class's, any of them; or "
        "[lowest, highest], between which each client's share is drawn",
    )

    @model_validator(mode="after")
    def _noise_is_a_share(self) -> Self:
        low, high = self.noise
        if not 0 <= low <= high <= 1:
            raise ValueError("`label_noise` must be a share from 0 to 1, or [lowest, highest]")
        return self

    @property
    def noise(self) -> tuple[float, float]:
        """The lowest and the highest share of wrong labels."""
        if isinstance(self.label_noise, float):
            return self.label_noise, self.label_noise
        return (self.label_noise[0], self.label_noise[1]) if len(self.label_noise) == 2 else (-1.0, -1.0)

    @model_validator(mode="after")
    def _some_are_left(self) -> Self:
        if self.holdout + self.validation >= 1:
            raise ValueError("`holdout` and `validation` leave nothing to train on; lower them")
        if self.validation_by == "class" and not self.validation:
            raise ValueError("`validation_by: class` needs `validation` above 0")
        return self

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """For each client the indices of its samples, in the order in which they go to training, validation, holdout.

        labels: of the training samples. natural: their natural client ids, or None. rng: depends on the seed alone.
        """
        raise NotImplementedError

    def draw(self, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0) -> Partition:
        labels = labels[: len(labels) - lent]
        groups = self.assign(labels, classes, natural, np.random.default_rng([seed, 43]))
        order = np.concatenate(groups) if groups else np.zeros(0, np.int64)
        if problem := _problem(order, len(labels)):
            raise UserError(
                f"task.partition.kind: {type(self).__name__}.assign {problem}; return an array of sample indices for "
                "each client"
            )
        partition = self._kept(order.astype(np.int64), np.array([len(group) for group in groups], dtype=np.int64))
        if self.validation_by == "class":
            partition = _validated_by_class(partition, labels)
        return _noisy(partition, labels, classes, self.noise, seed) if self.noise[1] else partition

    def _kept(self, order: np.ndarray, sizes: np.ndarray) -> Partition:
        """The partition, with what clients keep for validation and evaluation. sizes: samples of each client."""
        held_out, validation = (np.round(share * sizes).astype(np.int64) for share in (self.holdout, self.validation))
        validation = np.minimum(validation, np.maximum(sizes - 1, 0))
        train = np.maximum(sizes - validation - held_out, np.minimum(sizes, 1))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return Partition(order, offsets, train, validation if validation.any() else None)


def _problem(order: np.ndarray, samples: int) -> str | None:
    """What is wrong with the dealt samples; None: nothing."""
    if not len(order):
        return "deals no samples"
    if order.ndim != 1 or not np.issubdtype(order.dtype, np.integer):
        return f"deals {order.dtype} of {order.ndim} dimensions"
    if order.min() < 0 or order.max() >= samples:
        return f"deals samples outside the {samples} for training"
    return "deals a sample twice" if np.bincount(order).max() > 1 else None


def _noisy(partition: Partition, labels: np.ndarray, classes: int, noise: tuple[float, float], seed: int) -> Partition:
    """The same with wrong labels among each client's training samples: as many as its share says, to the nearest."""
    if classes < 2:
        raise UserError("task.partition.label_noise: this data set has a single class; remove it")
    rng = np.random.default_rng([seed, 53])
    seen = labels.copy()
    for start, size in zip(*partition.shares()["train"], strict=True):
        wrong = round(rng.uniform(*noise) * size)
        rows = partition.order[start + rng.choice(size, wrong, replace=False)]
        seen[rows] = (labels[rows] + rng.integers(1, classes, wrong)) % classes
    return replace(partition, labels=seen)


def _validated_by_class(partition: Partition, labels: np.ndarray) -> Partition:
    """The same, where the clients' samples for validation change owners: sorted by class, they are dealt in a row."""
    starts, sizes = partition.shares()["validation"]
    places = np.repeat(starts, sizes) + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = partition.order.copy()
    rows = order[places]
    order[places] = rows[np.argsort(labels[rows], kind="stable")]
    return replace(partition, order=order)
