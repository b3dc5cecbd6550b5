"""torchvision's data sets as arrays."""

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.data.dataset import Dataset, image_dataset


@dataclass(frozen=True)
class _Layout:
    """How torchvision stores a data set: its class there, its folder under the root, and one file of the folder."""

    loader: str
    folder: str
    witness: str
    mean: tuple[float, ...] = (0.1307,)
    std: tuple[float, ...] = (0.3081,)


_LAYOUTS = {
    "mnist": _Layout("MNIST", "MNIST/raw", "train-images-idx3-ubyte"),
    "fashion_mnist": _Layout("FashionMNIST", "FashionMNIST/raw", "train-images-idx3-ubyte", (0.2860,), (0.3530,)),
    "emnist_letters": _Layout("EMNIST", "EMNIST/raw", "emnist-letters-train-images-idx3-ubyte"),
    "cifar10": _Layout(
        "CIFAR10", "cifar-10-batches-py", "data_batch_1", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    ),
    "cifar100": _Layout("CIFAR100", "cifar-100-python", "train", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


def files(name: str, root: Path, download: bool) -> list[Path]:
    """The files of a data set that is present; none where it is still to be downloaded."""
    found = _find(name, root)
    if found is None and not download:
        layout = _LAYOUTS[name]
        raise UserError(
            f"task.data: {name} is not in {root.absolute()} (nor in its folder {name}): it should hold "
            f"{layout.folder}/{layout.witness}; name the right folder with --data-root, or set task.data.download: true"
        )
    return [] if found is None else sorted((found / _LAYOUTS[name].folder).iterdir())


def load(name: str, root: Path, download: bool) -> Dataset:
    """Read a data set through torchvision, downloading it first where asked and absent."""
    home = _find(name, root) or root
    layout = _LAYOUTS[name]
    try:
        with _unpacked(layout, home) as unpacked:
            train, test = (_read(layout, unpacked, part, download) for part in (True, False))
    except (RuntimeError, OSError, EOFError, ValueError) as error:
        raise UserError(
            f"task.data: {name} in {home.absolute()} cannot be read ({first_line(error)}); complete "
            f"{layout.folder} or set task.data.download: true"
        ) from None
    names = train[2]
    return image_dataset(name, train[:2], test[:2], names, layout.mean, layout.std)


def _read(layout: _Layout, home: Path, train: bool, download: bool) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    from torchvision import datasets

    options: dict[str, Any] = {"split": "letters"} if layout.loader == "EMNIST" else {}
    source = getattr(datasets, layout.loader)(str(home), train=train, download=download, **options)
    x, y = np.asarray(source.data), np.asarray(source.targets, dtype=np.int64)
    if layout.loader == "EMNIST":
        # Its images are stored lying on their side, and its letters are counted from 1.
        return x.transpose(0, 2, 1)[:, None].copy(), y - 1, tuple(ascii_uppercase)
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2).copy()
    return x, y, tuple(str(name) for name in source.classes)


@contextmanager
def _unpacked(layout: _Layout, home: Path) -> Iterator[Path]:
    """The root to read from: where only the .gz files are there (perhaps read-only), a temporary one."""
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


def _find(name: str, root: Path) -> Path | None:
    layout = _LAYOUTS[name]
    for home in (root, root / name):
        folder = home / layout.folder
        if (folder / layout.witness).exists() or (folder / f"{layout.witness}.gz").exists():
            return home
    return None
