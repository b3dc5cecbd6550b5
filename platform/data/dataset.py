"""A data set: arrays in memory, or mapped from files."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from hedgerow.algorithms.core.measures import Targets
from hedgerow.algorithms.measures.language import IGNORED
from hedgerow.platform.data.mapped_arrays import ArrayFile, blocks


@dataclass(frozen=True)
class Dataset:
    """Data set of raw arrays in their most compact type; samples are normalised only when a batch is drawn.

    x_train, x_test: images uint8 or float32 (n, C, H, W), features float32 (n, F) or tokens uint8 or int32 (n, L).
    y_*, by `targets`: a class per sample, int64 (n,); labels that are 0 or 1, int64 (n, K); numbers, float32 (n,) or
    (n, K); tokens, int64 (n, L), where -100 does not count. classes: number of classes, labels, numbers or tokens.
    mean, std: float32, broadcast against one sample, in raw units. train_clients: natural client of each training
    sample, int64 (n,), or None. public: number of public samples: the last training samples, from another data set.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    mean: np.ndarray
    std: np.ndarray
    class_names: tuple[str, ...]
    train_clients: np.ndarray | None = None
    is_tokens: bool = False
    public: int = 0
    lent: int = 0
    """Number of training samples, the last ones, that belong to the test set: clients may hold them out."""
    test_clients: np.ndarray | None = None
    """Natural client of each test sample, int64 (n,); -1: of no client that has training samples. None: unknown."""
    splits: np.ndarray | None = None
    """Use that each training sample's natural client makes of it, uint8 (n,): 0 training, 1 validation, 2 its own
    evaluation. None: all are for training."""
    targets: Targets = "classes"
    input_names: tuple[str, ...] = ()
    """Name of each feature, or of each token from 0, by which public samples are matched. (): by their position."""

    @classmethod
    def opened(cls, values: dict[str, Any]) -> Self:
        """Data set from its values by name, in which files stand for large arrays."""
        fields: dict[str, Any] = {name: v.open() if isinstance(v, ArrayFile) else v for name, v in values.items()}
        return cls(**fields)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x_train.shape[1:]

    @cached_property
    def vocabulary(self) -> int:
        """Number of distinct tokens: 1 more than the largest one."""
        return 1 + max(int(x[part].max()) for x in (self.x_train, self.x_test) if len(x) for part in blocks(x))

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Shapes that a model's output for one sample may have."""
        if self.targets == "tokens":
            return [(*self.y_train.shape[1:], self.classes)]
        return [(self.classes,), ()] if self.targets == "numbers" and self.y_train.ndim == 1 else [(self.classes,)]


def selected(dataset: Dataset, rows: np.ndarray) -> Dataset:
    """Data set of some training samples, for drawing a partition: with their labels, natural clients and splits.

    The samples themselves are left as they are.
    """
    fields = {name: getattr(dataset, name) for name in ("y_train", "train_clients", "splits")}
    return replace(dataset, **{name: value[rows] for name, value in fields.items() if value is not None})


def image_dataset(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    class_names: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Dataset:
    """Builds a data set of uint8 images; mean and std per channel, on the scale from 0 to 1."""
    mean_, std_ = (np.asarray(values, np.float32).reshape(-1, 1, 1) * 255 for values in (mean, std))
    (x, y), (x_test, y_test) = train, test
    y, y_test = y.astype(np.int64), y_test.astype(np.int64)
    return Dataset(name, x, y, x_test, y_test, len(class_names), mean_, std_, class_names)


def stratified_split(labels: np.ndarray, fraction: float) -> tuple[np.ndarray, np.ndarray]:
    """Row indices for training and for testing; the test part has the same `fraction` of each class."""
    rng = np.random.default_rng([0, 71])
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        test[rows[: round(fraction * len(rows))]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def mistake_in(dataset: Any) -> str | None:
    """Error in the data set that a user's own source returned, and its fix; None if there is none."""
    if not isinstance(dataset, Dataset):
        return f"returns {type(dataset).__name__}; return a hedgerow.platform.data.Dataset"
    for name in ("x_train", "y_train", "x_test", "y_test", "train_clients", "test_clients", "splits"):
        value = getattr(dataset, name)
        if not isinstance(value, np.ndarray) and (value is not None or name[1] == "_"):
            return f"has {name} of type {type(value).__name__}; give a NumPy array"
    for part, x, y in (("train", dataset.x_train, dataset.y_train), ("test", dataset.x_test, dataset.y_test)):
        if x.dtype not in ((np.uint8, np.int32) if dataset.is_tokens else (np.uint8, np.float32)):
            return f"has x_{part} of {x.dtype}; give images as uint8, features as float32, tokens as uint8 or int32"
        if x.ndim < 2 or x.shape[1:] != dataset.x_train.shape[1:]:
            return (
                f"has x_{part} of shape {x.shape}, and x_train of {dataset.x_train.shape}; give images (n, C, H, W), "
                "features (n, F) or tokens (n, L), of one shape in both"
            )
        for rows in blocks(x) if x.dtype != np.uint8 else ():
            wrong = x[rows] < 0 if dataset.is_tokens else ~np.isfinite(x[rows])
            if wrong.any():
                sample = rows.start + int(np.argwhere(wrong)[0, 0])
                what = "a token below 0" if dataset.is_tokens else "NaN or infinity"
                return f"has {what} in x_{part}, sample {sample}; remove the sample or replace the value"
        if problem := _mistake_in_targets(dataset, part, x, y):
            return problem
    lengths = {
        "train_clients": len(dataset.y_train),
        "test_clients": len(dataset.y_test),
        "splits": len(dataset.y_train),
    }
    for name, samples in lengths.items():
        values = getattr(dataset, name)
        if values is not None and values.shape != (samples,):
            return f"has {name} of shape {values.shape}; give one value for each of the {samples} samples"
    splits = dataset.splits
    if splits is not None and not (splits.dtype.kind in "iub" and np.isin(splits, (0, 1, 2)).all()):
        return "has other numbers in splits than 0 (training), 1 (validation) and 2 (own evaluation); replace them"
    if dataset.targets == "classes" and len(dataset.class_names or ()) != dataset.classes:
        return (
            f"names {len(dataset.class_names or ())} classes but has {dataset.classes}; give class_names one name for "
            "each class"
        )
    return mistake_in_units(dataset)


UNITS = 20
"""Ratio of a feature's own mean or deviation to the given one from which the units differ; 0 to 1 instead of 0 to 255
gives about 255."""


def mistake_in_units(dataset: Dataset) -> str | None:
    """Error in `mean` or `std`, such as those for pixels from 0 to 1 with pixels up to 255, and its fix; None if there
    is none.
    """
    if dataset.is_tokens or not len(dataset.x_train):
        return None
    rows = np.linspace(0, len(dataset.x_train) - 1, min(len(dataset.x_train), 500)).astype(int)
    x = dataset.x_train[rows].astype(np.float64)
    axes = (0, 2, 3) if x.ndim == 4 else 0
    for word, value, own in (("std", dataset.std, x.std(axes)), ("mean", dataset.mean, x.mean(axes))):
        try:
            given = np.broadcast_to(np.asarray(value, np.float64), x.shape[1:])
        except (ValueError, TypeError):
            return (
                f"has a `{word}` that does not broadcast against samples of shape {x.shape[1:]}; give one number each"
            )
        if not np.isfinite(given).all() or (word == "std" and not (given > 0).all()):
            return f"has a `{word}` with NaN, infinity or a deviation that is not above 0; replace it, such as by 1"
        computed = np.broadcast_to(own.reshape(-1, 1, 1) if x.ndim == 4 else own, given.shape)
        is_far = (given > 0) & (given < 1) & (computed > UNITS * given)
        if is_far.any() and (word == "std" or dataset.x_train.dtype == np.uint8):
            at = tuple(np.argwhere(is_far)[0])
            return (
                f"has `{word}` {given[at]:.4g}, but its samples have {computed[at]:.4g}; give `mean` and `std` in the "
                "units of the samples: for uint8 images, 255 times those for pixels from 0 to 1"
            )
    return None


FORMS: dict[Targets, tuple[type, tuple[int, ...], str]] = {
    "classes": (np.int64, (1,), "one int64 label each"),
    "labels": (np.int64, (2,), "a row of int64 labels each, 0 or 1"),
    "numbers": (np.float32, (1, 2), "one or several float32 numbers each"),
    "tokens": (np.int64, (2,), "a row of int64 tokens each"),
}
"""Kind of targets -> type, possible numbers of dimensions, and the form in words."""


def _mistake_in_targets(dataset: Dataset, part: str, x: np.ndarray, y: np.ndarray) -> str | None:
    if dataset.targets not in FORMS:
        return f"has targets={dataset.targets!r}; set it to {', '.join(FORMS)}"
    dtype, dimensions, form = FORMS[dataset.targets]
    if y.dtype != dtype or y.ndim not in dimensions or len(x) != len(y):
        return f"has {len(x)} samples in x_{part} and y_{part} of {y.dtype} {y.shape}; give {form}"
    width = y.shape[1] if y.ndim == 2 else 1
    if dataset.targets in ("labels", "numbers") and width != dataset.classes:
        return f"has {width} targets per sample in y_{part}, but classes={dataset.classes}; set classes={width}"
    if dataset.targets == "numbers":
        return None if np.isfinite(y).all() else f"has targets in y_{part} that are not finite; remove those samples"
    if not y.size:
        return None
    highest = 2 if dataset.targets == "labels" else dataset.classes
    counted = y[y != IGNORED] if dataset.targets == "tokens" else y
    if counted.size and not 0 <= counted.min() <= counted.max() < highest:
        what = (
            "give 0 or 1" if dataset.targets == "labels" else f"number its {dataset.classes} {dataset.targets} from 0"
        )
        return f"has labels from {counted.min()} to {counted.max()} in y_{part}; {what}"
    return None
