"""Omniglot: 20 drawings of each of many characters (Lake et al., 2015)."""

from pathlib import Path

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset, image_dataset, stratified_split
from hedgerow.platform.data.sources.image_folder import image_files, members, pixels
from hedgerow.platform.data.sources.source import Source


class Omniglot(Source):
    """Omniglot's characters, 1x28x28, 20 drawings each, from its authors' zip files (as torchvision stores them)."""

    path: str = Field(
        "omniglot-py", min_length=1, description="folder of images_background*.zip, relative to the data root"
    )
    size: int = Field(28, ge=1, description="resize images to size x size")
    test_fraction: float = Field(
        0.5, gt=0, lt=1, description="share of each character's drawings that is used for testing"
    )

    def files(self, root: Path) -> list[Path]:
        return [file for archive in archives(root / self.path) for file in image_files(archive)]

    def load(self, root: Path) -> Dataset:
        """Every ALPHABET/CHARACTER is a class; white on black. Drawings that are in two of the zip files count once."""
        drawings: dict[tuple[str, str], np.ndarray] = {}
        for archive in archives(root / self.path):
            for name, read in members(archive):
                label = "/".join(name.parts[-3:-1])
                if (label, name.name) not in drawings:
                    drawings[label, name.name] = 255 - pixels(archive, name, read, self.size)[:1]
        if not drawings:
            raise UserError(
                f"task.data.path: there are no drawings in images_* in {(root / self.path).absolute()}; put Omniglot's "
                "zips there"
            )
        names = tuple(sorted({label for label, _ in drawings}))
        numbers = {label: number for number, label in enumerate(names)}
        x = np.stack(list(drawings.values()))
        y = np.array([numbers[label] for label, _ in drawings])
        train, test = stratified_split(y, self.test_fraction)
        return image_dataset("omniglot", (x[train], y[train]), (x[test], y[test]), names, (0.08,), (0.25,))


def archives(path: Path) -> list[Path]:
    """Zip files of a folder or, if there are none, its subfolders. Raises UserError."""
    paths = sorted(path.glob("images_*.zip")) or sorted(p for p in path.glob("images_*") if p.is_dir())
    if not paths:
        raise UserError(
            f"task.data.path: there is no images_background*.zip in {path.absolute()}; put Omniglot's zips there, or "
            "give --data-root"
        )
    return paths
