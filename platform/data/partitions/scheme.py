"""Base class of all partition schemes: a section of the experiment file that deals samples to clients."""

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.keyed_random import other_generators
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.partition import Partition


class PartitionScheme(Section):
    """Scheme that deals samples to clients. Its fields are its options in the experiment file."""

    is_stream: ClassVar[bool] = False
    """Whether the scheme makes a stream of tasks, one per round, instead of clients."""

    deals_test_samples: ClassVar[bool] = False
    """Whether clients also own samples of the data set's test set."""

    needs_classes: ClassVar[bool] = False
    """Whether samples are dealt by their classes, so that every sample must have one."""

    kind: str = ""
    """Name of the scheme in the experiment file, set by the registry."""

    @property
    def class_keys(self) -> list[str]:
        """Keys of the section whose values need a class per sample."""
        return ["kind"] if self.needs_classes else []

    def prepare(self, dataset: Dataset) -> Dataset:
        """Returns the data set whose training samples are dealt. Raises UserError when the scheme does not fit it."""
        return dataset

    def own_splits(self, dataset: Dataset) -> np.ndarray | None:
        """Splits of the prepared data set's samples if the scheme follows them: `draw` has them as `splits` then."""
        return None

    def draw(self, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0) -> Partition:
        """Draws a partition, from the seed alone.

        labels: labels of the training samples of the prepared data set. natural: their natural client ids, or None.
        lent: number of samples, the last ones, that belong to the test set. Raises UserError when the scheme does not
        fit the data.
        """
        raise NotImplementedError


class SplitScheme(PartitionScheme):
    """Scheme that splits the training set; clients may keep samples for an upper level and for their own tests.

    Subclasses implement `assign`, which returns the samples of each client.
    """

    client_test_fraction: float = Field(
        0.0, ge=0, lt=1, description="share of its samples that each client keeps to test models on: client_accuracy"
    )
    upper_level_fraction: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of its samples that each client keeps for the upper level of bilevel problems, and as the "
        "clean samples of methods for noisy labels",
    )
    upper_level_by: Literal["client", "class"] = Field(
        "client",
        description="upper-level samples of each client: its own, or samples of as few classes as possible, dealt anew "
        "from those of all clients",
    )

    label_noise: float | list[float] = Field(
        0.0,
        description="share of each client's training labels that are replaced by a random other class; or [lowest, "
        "highest], between which each client's share is drawn",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            lambda scheme: not 0 <= scheme.noise[0] <= scheme.noise[1] <= 1,
            "`label_noise` must be a share from 0 to 1, or [lowest, highest]",
        ),
        Rule(
            lambda scheme: scheme.client_test_fraction + scheme.upper_level_fraction >= 1,
            "`client_test_fraction` and `upper_level_fraction` leave no samples for training; lower them",
        ),
        Rule(
            lambda scheme: scheme.upper_level_by == "class" and not scheme.upper_level_fraction,
            "`upper_level_by: class` needs `upper_level_fraction` above 0; raise it",
        ),
    )

    @property
    def noise(self) -> tuple[float, float]:
        """Lowest and highest share of wrong labels."""
        if isinstance(self.label_noise, float):
            return self.label_noise, self.label_noise
        return (self.label_noise[0], self.label_noise[1]) if len(self.label_noise) == 2 else (-1.0, -1.0)

    @property
    def class_keys(self) -> list[str]:
        by_class = ["upper_level_by"] if self.upper_level_by == "class" else []
        return [*super().class_keys, *by_class, *(["label_noise"] if self.noise[1] else [])]

    def assign(
        self, labels: np.ndarray, classes: int, natural: np.ndarray | None, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Sample indices of each client, in the order in which they go to training, validation and held-out samples.

        labels: labels of the training samples. natural: their natural client ids, or None. rng: depends on the seed
        alone.
        """
        raise NotImplementedError

    def draw(self, labels: np.ndarray, classes: int, natural: np.ndarray | None, seed: int, lent: int = 0) -> Partition:
        labels = labels[: len(labels) - lent]
        natural = None if natural is None else natural[: len(labels)]
        generators, place = other_generators(), f"task.partition.kind: {type(self).__name__}.assign"
        groups = self.assign(labels, classes, natural, np.random.default_rng([seed, 43]))
        # Other threads may draw, too, while a built-in scheme deals.
        if other_generators() != generators and not type(self).__module__.startswith("hedgerow."):
            raise UserError(f"{place} draws from the global generator of NumPy or Python; draw from `rng` instead")
        if problem := _problem(groups, len(labels)):
            raise UserError(f"{place} {problem}; return a list with an array of sample indices for each client")
        order = np.concatenate(groups).astype(np.int64)
        partition = self._kept(order, np.array([len(group) for group in groups], dtype=np.int64))
        if self.upper_level_by == "class":
            partition = _validated_by_class(partition, labels)
        return _noisy(partition, labels, classes, self.noise, seed) if self.noise[1] else partition

    def _kept(self, order: np.ndarray, sizes: np.ndarray) -> Partition:
        """Builds the partition with validation and held-out samples. sizes: number of samples of each client."""
        held_out, validation = (
            np.round(share * sizes).astype(np.int64) for share in (self.client_test_fraction, self.upper_level_fraction)
        )
        validation = np.minimum(validation, np.maximum(sizes - 1, 0))
        train = np.maximum(sizes - validation - held_out, np.minimum(sizes, 1))
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        return Partition(order, offsets, train, validation if validation.any() else None)


def grouped(owners: np.ndarray, clients: int) -> list[np.ndarray]:
    """Positions that each client owns."""
    by_owner = np.argsort(owners, kind="stable")
    return np.split(by_owner, np.cumsum(np.bincount(owners, minlength=clients))[:-1])


def _dimensions(group: Any) -> int | None:
    """Number of dimensions of an array or a list; None if the rows of a list differ in length."""
    try:
        return np.ndim(group)
    except ValueError:
        return None


def _problem(groups: Any, samples: int) -> str | None:
    """Error in the dealt samples; None if there is none."""
    if not isinstance(groups, list | tuple | np.ndarray):
        return f"returns {type(groups).__name__}"
    if any(_dimensions(group) != 1 for group in groups):
        return "returns other numbers of dimensions than 1 for a client"
    if not len(groups) or not len(order := np.concatenate(groups)):
        return "deals no samples"
    if not np.issubdtype(order.dtype, np.integer):
        return f"deals {order.dtype}"
    if order.min() < 0 or order.max() >= samples:
        return f"deals samples outside the {samples} for training"
    return "deals a sample twice" if np.bincount(order).max() > 1 else None


def _noisy(partition: Partition, labels: np.ndarray, classes: int, noise: tuple[float, float], seed: int) -> Partition:
    """Replaces a share of each client's training labels by wrong ones, rounded to whole samples."""
    if classes < 2:
        raise UserError("task.partition.label_noise: this data set has a single class; remove it")
    rng = np.random.default_rng([seed, 53])
    noisy_labels = labels.copy()
    for start, size in zip(*partition.splits()["train"], strict=True):
        wrong = round(rng.uniform(*noise) * size)
        rows = partition.order[start + rng.choice(size, wrong, replace=False)]
        noisy_labels[rows] = (labels[rows] + rng.integers(1, classes, wrong)) % classes
    return replace(partition, labels=noisy_labels)


def _validated_by_class(partition: Partition, labels: np.ndarray) -> Partition:
    """Redistributes the clients' validation samples: sorted by class, they are dealt in a row."""
    starts, sizes = partition.splits()["validation"]
    places = np.repeat(starts, sizes) + np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    order = partition.order.copy()
    rows = order[places]
    order[places] = rows[np.argsort(labels[rows], kind="stable")]
    return replace(partition, order=order)
