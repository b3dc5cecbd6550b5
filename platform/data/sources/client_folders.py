"""A folder for each client: tables, arrays, or images sorted by class."""

from pathlib import Path, PurePath

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.image_folder import image_files, is_hidden, read_images, stacked
from hedgerow.platform.data.sources.npz_file import array_names, read_array
from hedgerow.platform.data.sources.raw_arrays import RawSplit, build_dataset, joined
from hedgerow.platform.data.sources.source import Source
from hedgerow.platform.data.sources.tables import Columns, TablePath, read_tables

FORMATS = (".csv", ".parquet", ".npz")

TEST = "test"
"""Name, without its ending, of a client's file of test samples."""


class ClientFolders(Source):
    """Your own data in a folder for each client: CLIENT/*.csv, *.parquet or *.npz, or CLIENT/CLASS/*.png.

    Test samples are in CLIENT/test.csv (or .parquet, .npz), or in CLIENT/test/CLASS/* with CLIENT/train/CLASS/*.
    """

    path: str = Field(
        min_length=1,
        description="folder of the clients' folders, absolute or relative to the experiment file, "
        "the working directory or the data root",
    )
    label: str | list[str] | None = Field(None, description="tables: column of the label")
    features: list[str] | None = Field(None, description="tables: columns of the features; null: all others")
    one_hot: list[str] = Field([], description="tables: features that are categories")
    x: str = Field("x", min_length=1, description=".npz files: name of the array of samples")
    y: str = Field("y", min_length=1, description=".npz files: name of the array of labels")
    size: int | None = Field(
        None, ge=1, description="images: resize the shorter side to this size and crop the centre; null: as they are"
    )
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share of each client's samples that is used for testing if no client has any"
    )

    def files(self, root: Path) -> list[Path]:
        return [file for files in self._found(root).values() for file in files]

    def load(self, root: Path) -> Dataset:
        path, found = root / self.path, self._found(root)
        formats = {file.suffix.lower() for files in found.values() for file in files} & set(FORMATS)
        if not formats:
            return self._of_splits(
                path, _of_one_kind(path, {folder.name: _images(folder, self.size) for folder in found})
            )
        if formats == {".npz"}:
            return self._of_splits(path, {folder.name: self._arrays(files) for folder, files in found.items()})
        if not self.label:
            raise UserError(f"task.data.label: {path} has tables; name the column of the label")
        labels = [self.label] if isinstance(self.label, str) else self.label
        tables: dict[bool, list[TablePath]] = {False: [], True: []}
        for folder, files in found.items():
            for file in files:
                tables[_is_test(file)].append(TablePath(file, folder.name))
        columns = Columns(labels, self.features, self.one_hot)
        return read_tables(path.stem, tables[False], tables[True], columns, self.test_fraction)

    def _found(self, root: Path) -> dict[Path, list[Path]]:
        """Tables and arrays, or images, of each client, in the order of their names. Raises UserError."""
        path = root / self.path
        folders = [p for p in _listed(path) if p.is_dir()] if path.is_dir() else []
        if not folders:
            raise UserError(
                f"task.data.path: {path.absolute()} is no folder with a folder for each client; create it, or give "
                "--data-root"
            )
        if {"train", TEST} <= {folder.name.lower() for folder in folders}:
            raise UserError(
                f"task.data.path: {path} has the folders train/ and test/, which would be two clients; put both into "
                "the folder of each client, or choose image_folder, csv or parquet as `task.data.name`"
            )
        found = {folder: [p for p in _listed(folder) if p.suffix.lower() in FORMATS] for folder in folders}
        formats = sorted({file.suffix.lower() for files in found.values() for file in files})
        if len(formats) > 1:
            raise UserError(f"task.data.path: {path} has files of several formats ({', '.join(formats)}); use one")
        if not formats:
            found = {folder: image_files(folder) for folder in folders}
        for folder, files in found.items():
            if all(formats and _is_test(file) for file in files):
                raise UserError(
                    f"task.data.path: client {folder.name} has no training samples in {folder}; add "
                    f"*{formats[0] if formats else '.csv, *.parquet, *.npz, or images as CLASS/*.png'}, or remove the "
                    "folder"
                )
        return found

    def _arrays(self, files: list[Path]) -> dict[str, RawSplit]:
        """Splits of a client in .npz files."""
        splits: dict[str, list[tuple[int, RawSplit]]] = {"train": [], "test": []}
        for number, file in enumerate(files):
            names = array_names(file)
            x, y = (read_array(file, names, getattr(self, key), f"task.data.{key}") for key in ("x", "y"))
            splits["test" if _is_test(file) else "train"].append((number, RawSplit(x, y)))
        at, names = f"task.data.path: {files[0].parent}", [file.name for file in files]
        return {part: joined(found, names, at) for part, found in splits.items() if found}

    def _of_splits(self, path: Path, clients: dict[str, dict[str, RawSplit]]) -> Dataset:
        at, names = f"task.data.path: {path}", list(clients)
        parts = []
        for part in ("train", "test"):
            splits = [(number, clients[name][part]) for number, name in enumerate(names) if part in clients[name]]
            if splits:
                parts.append(joined(splits, names, at))
        return build_dataset(path.stem, at, *parts, test_fraction=self.test_fraction)


def _listed(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if not is_hidden(PurePath(p.name)))


def _is_test(file: Path) -> bool:
    return file.stem.lower() == TEST


def _images(folder: Path, size: int | None) -> dict[str, RawSplit]:
    """Splits of a client in folders of images. Raises UserError."""
    images = read_images(folder, size)
    if not images["train"]:
        raise UserError(
            f"task.data.path: client {folder.name} has no training images in {folder}; add CLASS/*.png or "
            "train/CLASS/*.png, or remove the folder"
        )
    return {
        part: RawSplit(stacked(folder, [x for _, x in found]), np.array([label for label, _ in found]))
        for part, found in images.items()
        if found
    }


def _of_one_kind(path: Path, clients: dict[str, dict[str, RawSplit]]) -> dict[str, dict[str, RawSplit]]:
    """Images with a single channel if all of them are grey. Raises UserError if they have different sizes."""
    xs = [split.x for splits in clients.values() for split in splits.values()]
    stacked(path, [x[0] for x in xs])
    if any((x != x[:, :1]).any() for x in xs):
        return clients
    return {
        name: {part: RawSplit(split.x[:, :1], split.y) for part, split in splits.items()}
        for name, splits in clients.items()
    }
