"""FEMNIST: handwritten digits and letters by writer, as LEAF and TensorFlow Federated have them."""

import string
from pathlib import Path

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.client_files import Fields, Samples, joined, part_files, read_clients
from hedgerow.platform.data.sources.source import Seed, Source

NAMES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
"""Classes of LEAF and of TensorFlow Federated, in their order."""


class Femnist(Source):
    """Handwritten digits and letters of 62 classes by writer (LEAF, Caldas et al. 2018).

    `kind: natural` gives each client one writer, with the writer's own test samples.
    LEAF's train/*.json and test/*.json (validation/*.json is used if it exists), or fed_emnist_train.h5 and
    fed_emnist_test.h5 of TensorFlow Federated.
    """

    path: str = Field("femnist", min_length=1, description="folder of the files, relative to the data root")
    clients: int | None = Field(
        None, ge=1, description="number of writers, drawn from those with training samples; null: all of them"
    )
    seed: Seed = 0

    def files(self, root: Path) -> list[Path]:
        return [file for files in part_files(root / self.path, "fed_emnist").values() for file in files]

    def load(self, root: Path) -> Dataset:
        """Reads the images as uint8, 255 for white paper.

        Writers without training samples are in the test set: LEAF may split by writer.
        """
        folder = root / self.path
        parts = {part: read_clients(files, _images) for part, files in part_files(folder, "fed_emnist").items()}
        writers = [name for name, (_, y) in parts["train"].items() if len(y)]
        if self.clients is not None:
            if self.clients > len(writers):
                raise UserError(f"task.data.clients: {folder} has {len(writers)} writers, not {self.clients}; lower it")
            chosen = np.random.default_rng([self.seed, 61]).choice(len(writers), self.clients, replace=False)
            left_out = set(writers) - {writers[i] for i in chosen}
            parts = {part: {n: own for n, own in users.items() if n not in left_out} for part, users in parts.items()}
            writers = [name for name in writers if name not in left_out]
        if not sum(len(y) for _, y in parts["test"].values()) or not writers:
            raise UserError(
                f"task.data.path: the files in {folder} have no samples for training or for testing; add them"
            )
        mean, std = (np.full((1, 1, 1), value, np.float32) for value in (127.5, 127.5))
        fields = joined(parts, writers)
        return Dataset("femnist", classes=len(NAMES), mean=mean, std=std, class_names=NAMES, **fields)


def _images(fields: Fields) -> Samples:
    """Images (n, 1, 28, 28) and labels of a writer: x and y of LEAF, pixels and label of TensorFlow Federated."""
    pixels, label = ("x", "y") if "x" in fields else ("pixels", "label")
    x, y = np.asarray(fields[pixels], np.float32), np.asarray(fields[label])
    if not len(y):
        return np.zeros((0, 1, 28, 28), np.uint8), np.zeros(0, np.int64)
    if x.size != len(y) * 784 or len(x) != len(y):
        raise ValueError(f"has images of shape {x.shape}, not {len(y)} of 28 x 28 pixels")
    if not (x.min() >= 0 and x.max() <= 1):
        raise ValueError("has pixels outside 0 to 1")
    if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 or y.min() < 0 or y.max() >= len(NAMES):
        raise ValueError(f"has labels that are not whole numbers from 0 to {len(NAMES) - 1}")
    return np.round(x.reshape(-1, 1, 28, 28) * 255).astype(np.uint8), y.astype(np.int64)
