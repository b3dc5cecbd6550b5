"""Data sets of the package `datasets`: from the Hub, a folder written by `save_to_disk`, or Parquet files."""

import glob
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError, one_line, optional_package
from hedgerow.platform.common.memory import gigabytes
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.mapped_arrays import empty, scratch_folders
from hedgerow.platform.data.sources.image_folder import decoded, resized
from hedgerow.platform.data.sources.raw_arrays import RawSplit, build_dataset
from hedgerow.platform.data.sources.source import Source, TestFraction

if TYPE_CHECKING:
    import datasets

ROWS = 1000
"""Number of rows that are read at a time."""

COPY = 4
"""Room for the package's copies, as a multiple of the files: Arrow files are not compressed."""


class HuggingFace(Source):
    """Data set of Hugging Face's package `datasets`, with columns for samples, labels and clients."""

    path: str = Field(
        min_length=1,
        description="folder written by save_to_disk, or Parquet file or folder of them, absolute or relative to the "
        "data root; else the name of a data set on the Hub",
    )
    config: str | None = Field(None, description="configuration of a data set on the Hub; null: its only one")
    revision: str | None = Field(
        None, description="commit or tag of a data set on the Hub, which fixes its content; null: the latest"
    )
    train: str = Field("train", min_length=1, description="split of the training samples")
    test: str | None = Field(
        "test", description="split of the test samples; a part of `train` if it has none or is null"
    )
    features: str | list[str] = Field(
        description="column of the samples: images, lists of numbers, or lists of tokens; or columns of numbers"
    )
    label: str | list[str] = Field("label", description="column of the label")
    client_column: str | None = Field(None, description="column of the natural client of each sample; null: none")
    tokens: bool = Field(False, description="whether samples are sequences of tokens, as integers")
    length: int | None = Field(
        None, ge=1, description="lists: cut each list to this length, or fill it with 0; null: all have one length"
    )
    size: int | None = Field(
        None, ge=1, description="images: resize the shorter side to this size and crop the centre; null: as they are"
    )
    test_fraction: TestFraction = 0.2

    def files(self, root: Path) -> list[Path]:
        path = root / self.path
        return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())

    def load(self, root: Path) -> Dataset:
        # The package copies Parquet files and downloads to Arrow files; our own cache replaces them.
        needed = COPY * sum(file.stat().st_size for file in self.files(root))
        folder = next((one for one in scratch_folders() if shutil.disk_usage(one).free > needed), None)
        if folder is None:
            raise UserError(
                f"task.data.name: huggingface copies data of {self.path} for a while, and there is no folder with "
                f"{gigabytes(needed)} of room; set HEDGEROW_CACHE to one"
            )
        with tempfile.TemporaryDirectory(dir=folder) as copies:
            splits = self._splits(root, copies)
            for key, name in (("train", self.train), ("test", self.test)):
                if name not in splits and (key, name) not in (("test", "test"), ("test", None)):
                    raise UserError(
                        f"task.data.{key}: {self.path} has no split {name!r} ({', '.join(splits)}); name one of these"
                    )
            names = self._class_names(splits[self.train])
            parts = [self._split(splits[name], names) for name in (self.train, self.test) if name in splits]
            return build_dataset(
                Path(self.path).stem,
                f"task.data.path: {self.path}",
                *parts,
                test_fraction=self.test_fraction,
                tokens=self.tokens,
                class_names=names,
            )

    def _splits(self, root: Path, copies: str) -> "dict[str, datasets.Dataset]":
        """Splits by name. copies: folder for files that are no longer needed afterwards. Raises UserError."""
        with optional_package("task.data.name: huggingface needs the package `datasets`", "huggingface"):
            import datasets
        path = root / self.path
        datasets.disable_progress_bars()
        try:
            if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
                found: Any = datasets.load_from_disk(str(path))
            elif path.exists():
                found = datasets.load_dataset("parquet", data_files=_parquet_files(path), cache_dir=copies)
            else:
                found = datasets.load_dataset(self.path, self.config, revision=self.revision, cache_dir=copies)
        except UserError:
            raise
        except Exception as error:
            where = "" if path.exists() else f": there is no {path.absolute()}, and on the Hub it"
            raise UserError(
                f"task.data.path: {self.path}{where} cannot be loaded ({one_line(error)}); give a folder of "
                "save_to_disk, Parquet files, or the name of a data set on the Hub"
            ) from None
        return dict(found) if isinstance(found, datasets.DatasetDict) else {self.train: found}

    def _split(self, split: "datasets.Dataset", names: list[str] | None) -> RawSplit:
        """Samples of a split. names: of the classes of the training split, by number. Raises UserError."""
        labels = [self.label] if isinstance(self.label, str) else self.label
        features = [self.features] if isinstance(self.features, str) else self.features
        client = [self.client_column] if self.client_column else []
        for key, wanted in (("features", features), ("label", labels), ("client_column", client)):
            for column in wanted:
                if column not in split.column_names:
                    raise UserError(
                        f"task.data.{key}: {self.path} has no column {column!r}{nearest(column, split.column_names)} "
                        f"(columns: {', '.join(split.column_names)})"
                    )
        if len(labels) == 1 and not hasattr(split.features[labels[0]], "feature"):
            y = self._by_names(_column(split, labels[0]), self._class_names(split), names)
        else:
            y = self._samples(split, labels)
        return RawSplit(self._samples(split, features), y, _column(split, client[0]) if client else None)

    def _samples(self, split: "datasets.Dataset", features: list[str]) -> np.ndarray:
        """Samples in an array that is filled block by block."""
        import datasets

        chosen = split.select_columns(features)
        is_image = isinstance(split.features[features[0]], datasets.Image)
        if is_image and len(features) > 1:
            raise UserError(
                f"task.data.features: {self.path} has images in column {features[0]!r}, which cannot be joined with "
                "other columns; name this column alone"
            )
        undecoded = datasets.Image(decode=False)
        rows = chosen.cast_column(features[0], undecoded) if is_image else chosen.with_format("numpy")
        x = None
        for start in range(0, len(split), ROWS):
            batch = rows[start : start + ROWS]
            if is_image:
                block = self._images(batch[features[0]], split.features[features[0]].mode, start)
            else:
                block = np.concatenate([self._numbers(batch[column], column, start) for column in features], axis=1)
            if x is None:
                x = empty((len(split), *block.shape[1:]), block.dtype)
            if block.shape[1:] != x.shape[1:]:
                raise self._uneven(features[0], start, is_image)
            x[start : start + len(block)] = block
        if x is None:
            return np.zeros((0, len(features)), np.float32)
        is_grey = is_image and all((x[i : i + ROWS] == x[i : i + ROWS, :1]).all() for i in range(0, len(x), ROWS))
        return x[:, :1] if is_grey else x

    def _images(self, items: list[dict[str, Any] | None], mode: str | None, start: int) -> np.ndarray:
        """Pixels of images. mode: of PIL, to which the column converts its images. Raises UserError."""
        arrays = []
        for row, item in enumerate(items, start):
            if item is None:
                raise UserError(f"task.data.features: {self.path} has no image in row {row}; remove the row")
            at = f"task.data.features: {self.path}: the image in row {row}"
            image = decoded(lambda item=item: item["bytes"] or Path(item["path"]).read_bytes(), at, mode)  # type: ignore[misc]
            arrays.append(resized(image, self.size))
        if len({array.shape for array in arrays}) > 1:
            raise self._uneven(str(self.features), start, True)
        return np.stack(arrays)

    def _numbers(self, values: Any, column: str, start: int) -> np.ndarray:
        """A column of numbers as (rows, 1), of lists as (rows, L), of images as arrays as they are."""
        if self.length and len(values) and np.ndim(values[0]) == 1:
            cut = np.zeros((len(values), self.length), np.result_type(*{np.asarray(value).dtype for value in values}))
            for row, value in zip(cut, values, strict=True):
                row[: min(len(value), self.length)] = value[: self.length]
            values = cut
        try:
            array = np.stack([np.asarray(value) for value in values]) if len(values) else np.zeros((0, 1))
        except ValueError:
            raise self._uneven(column, start, False) from None
        if array.dtype.kind not in "biuf":
            raise UserError(
                f"task.data.features: column {column!r} of {self.path} has values that are not numbers; name columns "
                "of numbers or images, or tokenise text first"
            )
        # Whole numbers become floats in a block of rows with a missing one.
        if array.dtype.kind == "f" and np.isnan(array).any():
            row = start + int(np.argwhere(np.isnan(array))[0, 0])
            raise UserError(
                f"task.data.path: column {column!r} of {self.path} has no value in row {row}; fill it in, or remove "
                "the row or the column"
            )
        return array[:, None] if array.ndim == 1 else array

    def _uneven(self, column: str, start: int, is_image: bool) -> UserError:
        key = "size" if is_image else "length"
        return UserError(
            f"task.data.{key}: samples in column {column!r} of {self.path} have different sizes, near row {start}; set "
            f"`{key}`"
        )

    def _by_names(self, y: np.ndarray, own: list[str] | None, names: list[str] | None) -> np.ndarray:
        """Labels, numbers of the classes `own`, as numbers of the classes `names`. Raises UserError."""
        if own is None or names is None or own == names:
            return y
        numbers = {code: names.index(name) for code, name in enumerate(own) if name in names}
        for code in set(y.tolist()) - numbers.keys():
            raise UserError(
                f"task.data.label: {self.path} has the class {dict(enumerate(own)).get(code, code)!r} in split "
                f"{self.test!r} and not in {self.train!r}; remove its samples, or give both splits the same classes"
            )
        return np.array([numbers[code] for code in y.tolist()])

    def _class_names(self, split: "datasets.Dataset") -> list[str] | None:
        import datasets

        feature = split.features.get(self.label) if isinstance(self.label, str) else None
        return list(feature.names) if isinstance(feature, datasets.ClassLabel) else None


def _column(split: "datasets.Dataset", column: str) -> np.ndarray:
    return np.asarray(split.select_columns([column]).with_format("arrow")[:].column(0).to_pandas())


def _parquet_files(path: Path) -> Any:
    """Parquet files by split, as `datasets.load_dataset` assigns the files of a folder.

    The package reads paths as glob patterns, so they are escaped. Raises UserError.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns

    if path.is_file():
        return glob.escape(str(path))
    folder = glob.escape(str(path.absolute()))
    files = DataFilesDict.from_patterns(get_data_patterns(folder), folder, allowed_extensions=[".parquet"])
    splits = {split: sorted(map(glob.escape, set(names))) for split, names in files.items() if names}
    if not splits:
        raise UserError(
            f"task.data.path: {path.absolute()} has neither Parquet files nor the files of save_to_disk; give one of "
            "these"
        )
    return splits
