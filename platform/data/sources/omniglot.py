"""Omniglot: 20 drawings of each of many characters (Lake et al., 2015)."""

from pathlib import Path

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset, image_dataset, stratified_split
from hedgerow.platform.data.sources.image_folder import members, pixels


def archives(path: Path) -> list[Path]:
    """The zips of a folder, or, where there are none, its folders. Raises UserError."""
    found = sorted(path.glob("images_*.zip")) or sorted(p for p in path.glob("images_*") if p.is_dir())
    if not found:
        raise UserError(
            f"task.data.path: there is no images_background*.zip in {path.absolute()}; put Omniglot's zips there, or "
            "give --data-root"
        )
    return found


def load(path: Path, size: int, test_fraction: float) -> Dataset:
    """Every ALPHABET/CHARACTER is a class; white on black. Drawings that lie in two of the zips count once."""
    drawings: dict[tuple[str, str], np.ndarray] = {}
    for archive in archives(path):
        for name, read in members(archive):
            label = "/".join(name.parts[-3:-1])
            if (label, name.name) not in drawings:
                drawings[label, name.name] = 255 - pixels(archive, name, read(), size)[:1]
    names = tuple(sorted({label for label, _ in drawings}))
    numbers = {label: number for number, label in enumerate(names)}
    x = np.stack(list(drawings.values()))
    y = np.array([numbers[label] for label, _ in drawings])
    train, test = stratified_split(y, test_fraction)
    return image_dataset("omniglot", (x[train], y[train]), (x[test], y[test]), names, (0.08,), (0.25,))
