"""A data set: arrays in memory, or mapped from files."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Dataset:
    """Data set of raw arrays in their most compact type; samples are normalised only when a batch is drawn.

    x_train, x_test: images uint8 or float32 (n, C, H, W), features float32 (n, F), or tokens uint8 or int32 (n, L).
    y_*: int64 (n,).
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

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.x_train.shape[1:]


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


def stratified_split(labels: np.ndarray, fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Row indices for training and for testing; the test part has the same `fraction` of each class."""
    rng = np.random.default_rng([seed, 71])
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        test[rows[: round(fraction * len(rows))]] = True
    return np.flatnonzero(~test), np.flatnonzero(test)


def mistake_in(dataset: Any) -> str | None:
    """Error in the data set that a user's own source returned, and its fix; None if there is none."""
    if not isinstance(dataset, Dataset):
        return f"returns {type(dataset).__name__}; return a hedgerow.platform.data.Dataset"
    for part, x, y in (("train", dataset.x_train, dataset.y_train), ("test", dataset.x_test, dataset.y_test)):
        if x.dtype not in ((np.uint8, np.int32) if dataset.is_tokens else (np.uint8, np.float32)):
            return f"has x_{part} of {x.dtype}; give images as uint8, features as float32, tokens as uint8 or int32"
        if y.dtype != np.int64 or y.ndim != 1 or len(x) != len(y):
            return f"has {len(x)} samples in x_{part} and y_{part} of {y.dtype} {y.shape}; give one int64 label each"
        if len(y) and not 0 <= y.min() <= y.max() < dataset.classes:
            return f"has labels from {y.min()} to {y.max()} in y_{part}; number its {dataset.classes} classes from 0"
    if len(dataset.class_names) != dataset.classes:
        return (
            f"names {len(dataset.class_names)} classes but has {dataset.classes}; give class_names one name for "
            "each class"
        )
    return None
