"""torchvision's data sets as arrays."""

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.data.dataset import Dataset, image_dataset
from hedgerow.platform.data.sources.source import Source


@dataclass(frozen=True)
class _Layout:
    """Storage layout of a torchvision data set: its class, its folder under the root, and one file of that folder."""

    loader: str
    folder: str
    witness: str
    mean: tuple[float, ...] = (0.1307,)
    std: tuple[float, ...] = (0.3081,)


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
        """Reads through torchvision, which first downloads a missing data set if `download` is set."""
        layout, home = self.layout, self._home(root) or root
        try:
            with _unpacked(layout, home) as unpacked:
                train, test = (_read(layout, unpacked, part, self.download) for part in (True, False))
        except (RuntimeError, OSError, EOFError, ValueError) as error:
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

    layout = _Layout("MNIST", "MNIST/raw", "train-images-idx3-ubyte")


class FashionMNIST(TorchvisionSource):
    """Fashion-MNIST: 60000 + 10000 articles of clothing, 1x28x28."""

    layout = _Layout("FashionMNIST", "FashionMNIST/raw", "train-images-idx3-ubyte", (0.2860,), (0.3530,))


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

    layout = _Layout("EMNIST", "EMNIST/raw", "emnist-letters-train-images-idx3-ubyte")

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


def _read(layout: _Layout, home: Path, train: bool, download: bool) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    # Imported here: it takes seconds, and processes that read the cache do not need it.
    from torchvision import datasets

    options: dict[str, Any] = {"split": "letters"} if layout.loader == "EMNIST" else {}
    source = getattr(datasets, layout.loader)(str(home), train=train, download=download, **options)
    x, y = np.asarray(source.data), np.asarray(source.targets, dtype=np.int64)
    if layout.loader == "EMNIST":
        # EMNIST stores its images transposed and counts its letters from 1.
        return x.transpose(0, 2, 1)[:, None].copy(), y - 1, tuple(ascii_uppercase)
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2).copy()
    return x, y, tuple(str(name) for name in source.classes)


@contextmanager
def _unpacked(layout: _Layout, home: Path) -> Iterator[Path]:
    """Root to read from: a temporary one if only the .gz files are present, since the root may be read-only."""
    folder = home / layout.folder
    packed = [] if (folder / layout.witness).exists() else sorted(folder.glob("*.gz"))
    if not packed:
        yield home
        return
    with tempfile.TemporaryDirectory() as name:
        target = Path(name) / layout.folder
        target.mkdir(parents=True)
        for file in packed:
            with gzip.open(file) as source, (target / file.stem).open("wb") as sink:
                shutil.copyfileobj(source, sink)
        yield Path(name)
