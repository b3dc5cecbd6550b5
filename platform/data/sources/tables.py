"""Tables with a row for each sample: CSV and Parquet files."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from hedgerow.platform.common.errors import UserError, one_line
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.mapped_arrays import empty
from hedgerow.platform.data.sources.raw_arrays import RawSplit, build_dataset
from hedgerow.platform.data.sources.source import Source

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ROWS = 20_000
"""Number of rows that are read at a time."""


class Columns(NamedTuple):
    """Columns of a table by their use. features: None: all columns without another use. separator: of a CSV file."""

    label: list[str]
    features: list[str] | None = None
    one_hot: Sequence[str] = ()
    client: str | None = None
    separator: str = ","


class TablePath(NamedTuple):
    """A file, and the client that all of its rows belong to; None: a column says it, or there are no clients."""

    path: Path
    client: str | None = None


class _TableSource(Source):
    ending: ClassVar[str]

    path: str = Field(min_length=1, description="file, or folder of files, absolute or relative to the data root")
    label: str | list[str] = Field(description="column of the label, as whole numbers or text")
    features: list[str] | None = Field(None, description="columns of the features, in this order; null: all others")
    one_hot: list[str] = Field(
        [], description="features that are categories, as numbers or text: each value becomes a feature of 0 and 1"
    )
    client: str | None = Field(None, description="column of the natural client of each row; null: none")
    test: str | None = Field(
        None, min_length=1, description="file or folder of the test samples; null: a part of `path`"
    )
    test_fraction: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="share of each client, or of each class if there are no clients, that is used for testing if there "
        "is no `test`",
    )

    @property
    def columns(self) -> Columns:
        labels = [self.label] if isinstance(self.label, str) else self.label
        return Columns(labels, self.features, self.one_hot, self.client, getattr(self, "separator", ","))

    def files(self, root: Path) -> list[Path]:
        return [file for paths in self._files(root) for file in paths]

    def load(self, root: Path) -> Dataset:
        """Reads the files in two passes of a few rows at a time: labels, clients and categories, then features."""
        train, test = ([TablePath(file) for file in paths] for paths in self._files(root))
        return read_tables(self.path, train, test, self.columns, self.test_fraction)

    def _files(self, root: Path) -> tuple[list[Path], list[Path]]:
        train = _listed(root / self.path, self.ending, "path")
        return train, _listed(root / self.test, self.ending, "test") if self.test else []


class CsvTable(_TableSource):
    """Your own table in CSV files with a header: a row for each sample, columns for features, label and client."""

    ending = "csv"

    separator: str = Field(",", min_length=1, max_length=1, description="character between two columns")


class ParquetTable(_TableSource):
    """Your own table in Parquet files: a row for each sample; a column may also hold a list of numbers."""

    ending = "parquet"


def _listed(path: Path, ending: str, key: str) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob(f"*.{ending}"))
    if not files:
        raise UserError(
            f"task.data.{key}: there is no file {path.absolute()}, nor a folder with *.{ending}; give the path of the "
            "table, or --data-root"
        )
    return files


def read_tables(
    name: str, train: list[TablePath], test: list[TablePath], columns: Columns, test_fraction: float
) -> Dataset:
    """Data set of tables. test: files of test samples; none: a part of the training samples. Raises UserError."""
    first = train[0].path
    headers = {file.path: _header(file.path, columns) for file in [*train, *test]}
    used = {*columns.label, *([columns.client] if columns.client else [])}
    features = columns.features or [column for column in headers[first] if column not in used]
    if not features:
        raise UserError(f"task.data.features: {first} has no columns besides label and client; add features")
    if twice := sorted(used & set(features)):
        raise UserError(f"task.data.features: {twice[0]!r} is also the label or the client; remove it from one of them")
    if unknown := [column for column in columns.one_hot if column not in features]:
        raise UserError(
            f"task.data.one_hot: {unknown[0]!r} is not one of the features{nearest(unknown[0], features)} (features: "
            f"{_some(features)})"
        )
    client = [columns.client] if columns.client else []
    for key, wanted in (("label", columns.label), ("client", client), ("features", features)):
        for path, header in headers.items():
            if absent := [column for column in wanted if column not in header]:
                raise UserError(
                    f"task.data.{key}: {path} has no column {absent[0]!r}{nearest(absent[0], header)} (columns: "
                    f"{_some(header)})"
                )
    outlines = {part: [_outline(file, columns) for file in files] for part, files in (("train", train), ("test", test))}
    categories = {
        column: np.unique(
            np.concatenate([outline.categories[column] for part in outlines.values() for outline in part])
        )
        for column in columns.one_hot
    }
    splits = []
    for part, files in (("train", train), ("test", test)):
        if files:
            x = _features(files, sum(len(outline.y) for outline in outlines[part]), features, categories, columns)
            splits.append(_split(x, outlines[part], f"task.data.label: {files[0].path}"))
    return build_dataset(name, f"task.data.path: {first}", *splits, test_fraction=test_fraction)


class _Outline(NamedTuple):
    """All columns of a file except its features."""

    y: np.ndarray
    clients: np.ndarray | None
    categories: dict[str, np.ndarray]


def _outline(file: TablePath, columns: Columns) -> _Outline:
    needed = [*columns.label, *columns.one_hot, *([columns.client] if columns.client else [])]
    parts: dict[str, list[np.ndarray]] = {column: [] for column in needed}
    categories: dict[str, set[Any]] = {column: set() for column in columns.one_hot}
    row = 0
    for chunk in _chunks(file.path, needed, columns):
        for column in needed:
            _check_complete(chunk[column], column, file.path, row)
            if column in categories:
                categories[column] |= set(chunk[column])
            else:
                parts[column].append(chunk[column].to_numpy())
        row += len(chunk)
    labels = [_joined(parts[column]) for column in columns.label]
    y = labels[0] if len(labels) == 1 else np.stack(labels, axis=1)
    clients = _joined(parts[columns.client]) if columns.client else None
    if file.client is not None:
        clients = np.full(len(y), file.client)
    return _Outline(y, clients, {column: _values(found) for column, found in categories.items()})


def _split(x: np.ndarray, outlines: list[_Outline], at: str) -> RawSplit:
    owners = [outline.clients for outline in outlines if outline.clients is not None]
    return RawSplit(x, _joined([outline.y for outline in outlines]), _joined(owners) if owners else None)


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    """One array; text among numbers makes all of them text."""
    if not parts:
        return np.zeros(0)
    kinds = {part.dtype.kind == "O" for part in parts if len(part)}
    return np.concatenate([part.astype(str).astype(object) if len(kinds) > 1 else part for part in parts])


def _values(found: set[Any]) -> np.ndarray:
    """Distinct values in ascending order; text among numbers makes all of them text."""
    return np.unique(np.array([str(v) for v in found] if any(isinstance(v, str) for v in found) else list(found)))


def _features(
    files: list[TablePath], rows: int, features: list[str], categories: dict[str, np.ndarray], columns: Columns
) -> np.ndarray:
    """Features of all rows, (rows, F) float32."""
    x, start = None, 0
    for file in files:
        row = 0
        for chunk in _chunks(file.path, features, columns):
            parts = []
            for column in features:
                if column in categories:
                    values = chunk[column].to_numpy()
                    values = values.astype(str) if categories[column].dtype.kind == "U" else values
                    parts.append((values[:, None] == categories[column]).astype(np.float32))
                else:
                    parts.append(_numbers(chunk[column], column, file.path, row))
            block = np.concatenate(parts, axis=1)
            if x is None:
                x = empty((rows, block.shape[1]), np.dtype(np.float32))
            if block.shape[1] != x.shape[1]:
                raise UserError(
                    f"task.data.features: {file.path} has lists of different lengths; give every row as many numbers"
                )
            x[start + row : start + row + len(block)] = block
            row += len(block)
        start += row
    return np.zeros((0, len(features)), np.float32) if x is None else x


def _numbers(values: "Series[Any]", column: str, path: Path, row: int) -> np.ndarray:
    """A column of numbers as (rows, 1), of lists of numbers as (rows, L). row: of the first value. Raises UserError."""
    _check_complete(values, column, path, row)
    array = values.to_numpy()
    if not len(array):
        return np.zeros((0, 1), np.float32)
    if array.dtype.kind == "O" and isinstance(array[0], np.ndarray | list):
        try:
            array = np.stack(list(array))
        except ValueError:
            raise UserError(
                f"task.data.features: column {column!r} of {path} has lists of different lengths; give every row as "
                "many numbers"
            ) from None
    if array.dtype.kind not in "biuf" or array.ndim > 2:
        raise UserError(
            f"task.data.features: column {column!r} of {path} has values that are not numbers, such as "
            f"{_text(array)!r}; name it in task.data.one_hot if it is a category, or leave it out of task.data.features"
        )
    with np.errstate(over="ignore"):
        return array.reshape(len(array), -1).astype(np.float32)


def _text(array: np.ndarray) -> Any:
    """The first value that cannot be read as a number; otherwise the first value."""
    for value in array:
        try:
            float(value)
        except (TypeError, ValueError):
            return value
    return array[0]


def _check_complete(values: "Series[Any]", column: str, path: Path, row: int) -> None:
    missing = values.isna().to_numpy()
    if missing.any():
        raise UserError(
            f"task.data.path: column {column!r} of {path} has no value in row {row + int(missing.argmax()) + 1}; "
            "fill it in, or remove the row or the column"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:30]) + (", ..." if len(names) > 30 else "")


# ---- the two formats -------------------------------------------------------------------------------------------------


def _header(path: Path, columns: Columns) -> list[str]:
    """Names of the columns. Raises UserError."""
    # Imported here, since processes that read the cache do not need them.
    if path.suffix == ".parquet":
        from pyarrow import ArrowInvalid, parquet

        try:
            return list(parquet.read_schema(path).names)
        except (ArrowInvalid, OSError) as error:
            raise _unreadable(path, error) from None
    import pandas as pd

    try:
        return [str(column) for column in pd.read_csv(path, sep=columns.separator, nrows=0).columns]
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def _chunks(path: Path, wanted: list[str], columns: Columns) -> "Iterator[DataFrame]":
    """Some columns of a table, a few rows at a time. Raises UserError."""
    import pandas as pd
    from pyarrow import ArrowInvalid, parquet

    try:
        if path.suffix == ".parquet":
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS, columns=wanted):
                    yield batch.to_pandas()
        else:
            with pd.read_csv(path, sep=columns.separator, chunksize=ROWS, usecols=wanted) as chunks:
                yield from chunks
    except (ArrowInvalid, ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    kind = "Parquet" if path.suffix == ".parquet" else "CSV"
    return UserError(f"task.data.path: {path} is not a readable {kind} file ({one_line(error)}); write it again")
