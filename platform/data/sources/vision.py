"""torchvision's data sets as arrays."""

import gzip
from dataclasses import dataclass
from math import prod
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.data.dataset import Dataset, image_dataset
from hedgerow.platform.data.sources.source import Source
from hedgerow.platform.data.zip_members import UNREADABLE, require_plausible

IMAGES, LABELS = "images-idx3-ubyte", "labels-idx1-ubyte"
"""Endings of MNIST's files."""


@dataclass(frozen=True)
class _Layout:
    """Storage layout of a torchvision data set: its class, its folder under the root, and one file of that folder.

    parts: first words of the names of MNIST's files for training and for testing; None: torchvision reads the files.
    """

    loader: str
    folder: str
    witness: str
    mean: tuple[float, ...] = (0.1307,)
    std: tuple[float, ...] = (0.3081,)
    parts: tuple[str, str] | None = None

    def files(self) -> list[str]:
        """Names of MNIST's files."""
        return [f"{part}-{ending}" for part in self.parts or () for ending in (IMAGES, LABELS)]


class TorchvisionSource(Source):
    """Data set in torchvision's own layout, in the data root or in a subfolder with the name of the data set."""

    layout: ClassVar[_Layout]

    download: bool = Field(False, description="download it into the data root if it is missing")

    def files(self, root: Path) -> list[Path]:
        """Files of a data set that is present; empty if it is still to be downloaded."""
        layout, home = self.layout, self._home(root)
        if home is None and not self.download:
            raise UserError(
                f"task.data: {self.name} is not in {root.absolute()} (nor in its folder {self.name}): it should "
                f"contain {layout.folder}/{layout.witness}; set the right folder with --data-root, or set "
                "task.data.download: true"
            )
        return [] if home is None else sorted((home / layout.folder).iterdir())

    def load(self, root: Path) -> Dataset:
        """Reads the files. torchvision first downloads a missing data set if `download` is set."""
        layout, home = self.layout, self._home(root) or root
        try:
            train, test = (_read(layout, home, part, self.download) for part in (True, False))
        except UNREADABLE as error:
            raise UserError(
                f"task.data: {self.name} in {home.absolute()} cannot be read ({first_line(error)}); restore the files "
                f"of {layout.folder} or set task.data.download: true"
            ) from None
        return image_dataset(self.name, train[:2], test[:2], train[2], layout.mean, layout.std)

    def _home(self, root: Path) -> Path | None:
        for home in (root, root / self.name):
            folder = home / self.layout.folder
            if (folder / self.layout.witness).exists() or (folder / f"{self.layout.witness}.gz").exists():
                return home
        return None


class MNIST(TorchvisionSource):
    """MNIST: 60000 + 10000 digits, 1x28x28."""

    layout = _Layout("MNIST", "MNIST/raw", f"train-{IMAGES}", parts=("train", "t10k"))


class FashionMNIST(TorchvisionSource):
    """Fashion-MNIST: 60000 + 10000 articles of clothing, 1x28x28."""

    layout = _Layout(
        "FashionMNIST", "FashionMNIST/raw", f"train-{IMAGES}", (0.2860,), (0.3530,), parts=("train", "t10k")
    )


class CIFAR10(TorchvisionSource):
    """CIFAR-10: 50000 + 10000 photographs, 3x32x32."""

    layout = _Layout(
        "CIFAR10", "cifar-10-batches-py", "data_batch_1", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    )


class CIFAR100(TorchvisionSource):
    """CIFAR-100: 50000 + 10000 photographs in 100 classes, 3x32x32."""

    layout = _Layout("CIFAR100", "cifar-100-python", "train", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


class EMNISTLetters(TorchvisionSource):
    """EMNIST letters, 1x28x28: the first 10 are FedDyn's EMNIST-L, 48000 + 8000 samples."""

    layout = _Layout(
        "EMNIST",
        "EMNIST/raw",
        f"emnist-letters-train-{IMAGES}",
        parts=("emnist-letters-train", "emnist-letters-test"),
    )

    classes: int = Field(10, ge=2, le=26, description="number of letters, from A on")

    def load(self, root: Path) -> Dataset:
        everything = super().load(root)
        train, test = everything.y_train < self.classes, everything.y_test < self.classes
        return image_dataset(
            self.name,
            (everything.x_train[train], everything.y_train[train]),
            (everything.x_test[test], everything.y_test[test]),
            everything.class_names[: self.classes],
            self.layout.mean,
            self.layout.std,
        )


Part = tuple[np.ndarray, np.ndarray, tuple[str, ...]]
"""Images (n, C, H, W), their labels (n,), and the names of the classes."""


def _read(layout: _Layout, home: Path, train: bool, download: bool) -> Part:
    # Imported here: it takes seconds, and processes that read the cache do not need it.
    from torchvision import datasets

    loader = getattr(datasets, layout.loader)
    if layout.parts is not None:
        folder = home / layout.folder
        if download and not all(_present(folder / name) for name in layout.files()):
            if (copies := folder.parent / "processed").exists():
                raise ValueError(f"torchvision would read its old copies in {copies} and download nothing; remove them")
            loader(str(home), train=train, download=True, **({"split": "letters"} if layout.loader == "EMNIST" else {}))
        return _read_idx(layout, folder, layout.parts[0 if train else 1], loader)
    source = loader(str(home), train=train, download=download)
    x, y = np.asarray(source.data), np.asarray(source.targets, dtype=np.int64)
    return x.transpose(0, 3, 1, 2).copy(), y, tuple(str(name) for name in source.classes)


def _read_idx(layout: _Layout, folder: Path, part: str, loader: Any) -> Part:
    """Images and labels of MNIST's files.

    torchvision would rather read the pickled copies of its earlier versions, where they are still there.
    """
    x, y = (_array(folder / f"{part}-{ending}") for ending in (IMAGES, LABELS))
    y = y.astype(np.int64)
    if layout.loader == "EMNIST":
        # EMNIST stores its images transposed and counts its letters from 1.
        x, y, names = x.transpose(0, 2, 1).copy(), y - 1, tuple(ascii_uppercase)
    else:
        names = tuple(str(name) for name in loader.classes)
    if x.ndim != 3 or y.shape != x.shape[:1] or not len(y):
        raise ValueError(f"{part} has images of shape {x.shape} and labels of shape {y.shape}")
    if y.min() < 0 or y.max() >= len(names):
        raise ValueError(f"{part} has a label that is none of the {len(names)} classes")
    return x[:, None], y, names


def _present(file: Path) -> Path | None:
    """The file or, if only that exists, its .gz file; None if there is neither."""
    return next((one for one in (file, file.with_name(f"{file.name}.gz")) if one.exists()), None)


def _array(name: Path) -> np.ndarray:
    """Bytes in the format of MNIST's files, plain or as .gz: a header with the shape, and as many bytes as it says."""
    file = _present(name)
    if file is None:
        raise FileNotFoundError(f"there is no {name.name}")
    packed = file.stat().st_size
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as content:
        head = content.read(4)
        if head[:3] != b"\0\0\x08" or len(head) < 4:
            raise ValueError(f"{file.name} has no header of such a file")
        shape = tuple(int(n) for n in np.frombuffer(content.read(4 * head[3]), ">u4"))
        size = prod(shape)
        if file.suffix == ".gz":
            require_plausible(size, packed, f"task.data: {file}", "restore it")
        elif size != packed - 4 - 4 * len(shape):
            raise ValueError(f"{file.name} does not have the {size} bytes that its header announces")
        # At its end, a .gz file is compared with its checksum.
        body = content.read(size + 1)
    if len(body) != size or len(shape) != head[3]:
        raise ValueError(f"{file.name} does not have the {size} bytes that its header announces")
    return np.frombuffer(body, np.uint8).reshape(shape)
