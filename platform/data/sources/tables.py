"""Tables with a row for each sample: CSV and Parquet files."""

import csv
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import Field, field_validator

from hedgerow.platform.common.errors import UserError, one_line, say
from hedgerow.platform.common.memory import require
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.mapped_arrays import empty
from hedgerow.platform.data.sources.raw_arrays import RawSplit, are_rounded, build_dataset
from hedgerow.platform.data.sources.source import Source, TestFraction

if TYPE_CHECKING:
    from pandas import DataFrame, Series

ROWS = 20_000
"""Number of rows that are read at a time."""

WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")
"""Whole numbers of 64 bits in their usual spelling."""

DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(inf|infinity)", re.IGNORECASE)

TRUTH_VALUES = ({"False", "True"}, {"false", "true"}, {"FALSE", "TRUE"})

LABEL_TYPES = {"i": "whole numbers", "u": "whole numbers", "f": "floats", "b": "truth values", "O": "text"}

INDEX = re.compile(r"__index_level_[0-9]+__|Unnamed: [0-9]+(\.[0-9]+)?")
"""Columns of an index without a name, as pandas writes and reads them."""


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

    path: str = Field(
        min_length=1,
        description="file, or folder of files, absolute or relative to the experiment file, "
        "the working directory or the data root",
    )
    label: str | list[str] = Field(description="column of the label: whole numbers or text, or floats for a regression")
    features: list[str] | None = Field(None, description="columns of the features, in this order; null: all others")
    one_hot: list[str] = Field(
        [], description="features that are categories, as numbers or text: each value becomes a feature of 0 and 1"
    )
    client: str | None = Field(None, description="column of the natural client of each row; null: none")
    test: str | None = Field(
        None, min_length=1, description="file or folder of the test samples; null: a part of `path`"
    )
    test_fraction: TestFraction = 0.2

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

    separator: str = Field(",", min_length=1, max_length=1, description="ASCII character between two columns")

    @field_validator("separator")
    @classmethod
    def _is_readable(cls, separator: str) -> str:
        if not separator.isascii() or separator in "\r\n":
            raise ValueError(f"{separator!r} cannot separate columns; use an ASCII character, such as ';' or '\\t'")
        return separator


class ParquetTable(_TableSource):
    """Your own table in Parquet files: a row for each sample; features and labels may also be lists of numbers."""

    ending = "parquet"


def _listed(path: Path, ending: str, key: str) -> list[Path]:
    if path.is_file():
        return [path]
    entries = sorted(path.glob("[!.]*"))
    files = [file for file in entries if file.is_file()]
    named = [file for file in files if file.suffix.lower() == f".{ending}"]
    if ending == "parquet" and not named:
        # Hadoop writes `part-00000` next to `_SUCCESS` and `_metadata`, which are no parts.
        named = [file for file in files if not file.name.startswith("_") and _is_parquet(file)]
    if not named:
        folders = [entry for entry in entries if entry.suffix.lower() == f".{ending}"]
        raise UserError(
            f"task.data.{key}: there is no file {path.absolute()}, nor a folder with *.{ending}; give the path of the "
            "table" + (f", such as the folder {folders[0].name} in it" if folders else "") + ", or --data-root"
        )
    return named


def read_tables(
    name: str, train: list[TablePath], test: list[TablePath], columns: Columns, test_fraction: float
) -> Dataset:
    """Data set of tables. test: files of test samples; none: a part of the training samples. Raises UserError."""
    first = train[0].path
    headers = {file.path: _header(file.path, columns) for file in [*train, *test]}
    used = {*columns.label, *([columns.client] if columns.client else [])}
    indices = {path: (_index(path) | set(filter(INDEX.fullmatch, header))) - used for path, header in headers.items()}
    features = columns.features
    if features is None:
        others = (column for path, header in headers.items() for column in header if column not in used | indices[path])
        features = list(dict.fromkeys(others))
    if twice := sorted(used & set(features)):
        raise UserError(f"task.data.features: {twice[0]!r} is also the label or the client; remove it from one of them")
    for key, named in (("label", columns.label), ("features", features)):
        if not named:
            raise UserError(f"task.data.{key}: no columns of {first} are used; name or add at least one")
        if twice := sorted({column for column in named if named.count(column) > 1}):
            raise UserError(f"task.data.{key}: {twice[0]!r} is named twice; name each column once")
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
                    f"{_some(header)}); name columns that all files have"
                )
    for column in sorted(indices[first] if columns.features is None else ()):
        say(f"task.data.features: the index {column!r} of {first} is not used; name it if it is a feature")
    outlines = {file.path: _outline(file, columns) for file in [*train, *test]}
    labels = []
    for number, column in enumerate(columns.label):
        parts = {path: outline.labels[number] for path, outline in outlines.items() if len(outline.labels[number])}
        # Fields of CSV files are compared before they are merged: together, truth values and others would be text.
        _check_types(column, {path: _field_type(part) for path, part in parts.items() if not _is_parquet(path)})
        parts = _of_one_type(parts)
        _check_types(column, {path: LABEL_TYPES.get(y.dtype.kind, str(y.dtype)) for path, y in parts.items()})
        labels.append(parts)
    clients = {path: outline.clients for path, outline in outlines.items() if outline.clients is not None}
    if client:
        clients = _of_one_type(clients, are_ids=True)
    for column in [*columns.one_hot, *client]:
        _check_spelling(column, {path: outline.ids[column] for path, outline in outlines.items()})
    categories = {
        column: _values(set().union(*(outline.ids[column] for outline in outlines.values())))
        for column in columns.one_hot
    }
    splits, names = [], list[str]()
    for files in (train, test):
        if files:
            rows = sum(outlines[file.path].rows for file in files)
            x, names = _features(files, rows, features, categories, columns)
            y = [
                _joined([parts[file.path] for file in files if file.path in parts], "label", files[0].path)
                for parts in labels
            ]
            owners = [clients[file.path] for file in files if file.path in clients]
            splits.append(
                RawSplit(
                    x,
                    y[0] if len(y) == 1 else np.column_stack(y),
                    _joined(owners, "client", files[0].path) if owners else None,
                )
            )
    data = build_dataset(name, f"task.data.path: {first}", *splits, test_fraction=test_fraction, columns=names)
    return replace(data, input_names=tuple(names))


class _Outline(NamedTuple):
    """All columns of a file except its features. ids: distinct values of categories and of the column of clients."""

    rows: int
    labels: list[np.ndarray]
    clients: np.ndarray | None
    ids: dict[str, set[Any]]


def _outline(file: TablePath, columns: Columns) -> _Outline:
    client = [columns.client] if columns.client else []
    needed = list(dict.fromkeys([*columns.label, *columns.one_hot, *client]))
    if _is_parquet(file.path):
        from pyarrow import parquet

        # A column that is constant takes a few bytes for any number of rows.
        size = 2 * 8 * len(needed) * parquet.read_metadata(file.path).num_rows
        require(size, f"task.data.path: the labels in {file.path}", "use fewer rows")
    parts: dict[str, list[np.ndarray]] = {column: [] for column in needed}
    ids: dict[str, set[Any]] = {column: set() for column in [*columns.one_hot, *client]}
    row = 0
    for chunk in _chunks(file.path, needed, needed, columns):
        for column in needed:
            _check_complete(chunk[column], column, file.path, row, columns)
            values = chunk[column].to_numpy()
            if column in ids:
                key = "client" if column == columns.client else "one_hot"
                ids[column] |= set(_hashable(values, column, file.path, key))
            if column not in columns.one_hot:
                parts[column].append(_stacked(values, column, file.path, "label"))
        row += len(chunk)
    clients = None if file.client is None else np.full(row, file.client)
    if columns.client:
        clients = _joined(parts[columns.client], "client", file.path)
    return _Outline(row, [_joined(parts[column], "label", file.path) for column in columns.label], clients, ids)


def _hashable(values: np.ndarray, column: str, path: Path, key: str) -> np.ndarray:
    for value in values if values.dtype.kind not in "biuf" else ():
        if not isinstance(value, str | bool | int | float):
            raise UserError(
                f"task.data.{key}: column {column!r} of {path} has values of type {type(value).__name__}, such as "
                f"{one_line(value)}; give numbers or text"
            )
    return values


def _stacked(values: np.ndarray, column: str, path: Path, key: str) -> np.ndarray:
    """A column of lists as one array, (rows, L); another column as it is."""
    if values.dtype.kind == "O" and len(values) and isinstance(values[0], np.ndarray | list):
        try:
            return np.stack(list(values))
        except ValueError:
            raise UserError(
                f"task.data.{key}: column {column!r} of {path} has lists of different lengths; give every row as many "
                "numbers"
            ) from None
    return values


def _joined(parts: list[np.ndarray], key: str, path: Path) -> np.ndarray:
    """One array; text among numbers makes all of them text."""
    if not parts:
        return np.zeros(0)
    if len({part.shape[1:] for part in parts if len(part)}) > 1:
        raise UserError(f"task.data.{key}: {path} has lists of different lengths; give every row as many numbers")
    kinds = {part.dtype.kind == "O" for part in parts if len(part)}
    return np.concatenate([part.astype(str).astype(object) if len(kinds) > 1 else part for part in parts])


def _of_one_type(parts: dict[Path, np.ndarray], are_ids: bool = False) -> dict[Path, np.ndarray]:
    """A column of each file, in which the fields of all CSV files become truth values, whole numbers, numbers or text.

    are_ids: different fields stay different: other spellings of numbers, such as `007` and `1e2`, are text.
    """
    fields = {path: part for path, part in parts.items() if not _is_parquet(path)}
    if not fields:
        return parts
    values, places = np.unique(np.concatenate(list(fields.values())), return_inverse=True)
    found = set(values)
    if all(map(WHOLE.fullmatch, found)):
        values = values.astype(np.int64)
    elif are_ids:
        pass
    elif any(found <= spelled for spelled in TRUTH_VALUES):
        values = np.array([value.lower() == "true" for value in values])
    elif all(map(DECIMAL.fullmatch, found)) and not all(value.lstrip("+-").isdecimal() for value in found):
        values = values.astype(np.float64)
    ends = np.cumsum([len(part) for part in fields.values()])
    return parts | dict(zip(fields, np.split(values[places], ends[:-1]), strict=True))


def _field_type(fields: np.ndarray) -> str:
    """Type of the labels of one CSV file. Numbers may be text next to those of another file, and whole ones floats."""
    values = set(fields)
    for spelled in TRUTH_VALUES:
        if values <= spelled:
            return f"truth values such as {max(spelled)}"
    return "numbers or text"


def _check_types(column: str, types: dict[Path, str]) -> None:
    """Raises UserError for labels of another type in another file: floats would make a regression of classes."""
    files = {of_file: path for path, of_file in types.items()}
    if len(files) > 1:
        (one, first), (other, second), *_ = files.items()
        raise UserError(
            f"task.data.label: column {column!r} has {one} in {first} and {other} in {second}; store one type "
            "in all files"
        )


def _check_spelling(column: str, values: dict[Path, set[Any]]) -> None:
    """Raises UserError for `1` and `1.0` as ids in CSV files: pandas writes whole numbers so if some are missing."""
    fields = set().union(*values.values())
    for path, found in values.items():
        for value in found:
            if isinstance(value, str) and value.endswith(".0") and value[:-2] in fields:
                raise UserError(
                    f"task.data.path: column {column!r} of {path} has {value!r}, and there is {value[:-2]!r}, too; "
                    "write a value in one way everywhere"
                )


def _values(found: Collection[Any]) -> np.ndarray:
    """Distinct values in ascending order; text among numbers makes all of them text."""
    if not any(isinstance(value, str) for value in found):
        return np.unique(np.array(list(found)))
    texts = {str(value) for value in found}
    return np.array(sorted(texts, key=int if all(map(WHOLE.fullmatch, texts)) else None))


def _features(
    files: list[TablePath], rows: int, features: list[str], categories: dict[str, np.ndarray], columns: Columns
) -> tuple[np.ndarray, list[str]]:
    """Features of all rows, (rows, F) float64, and their names."""
    x, names, start = None, list[str](), 0
    for file in files:
        row = 0
        for chunk in _chunks(file.path, features, columns.one_hot, columns):
            parts = []
            for column in features:
                if column in categories:
                    values = chunk[column].to_numpy()
                    values = values.astype(str) if categories[column].dtype.kind == "U" else values
                    parts.append((values[:, None] == categories[column]).astype(np.float64))
                else:
                    parts.append(_numbers(chunk[column], column, file.path, row, columns))
            block = np.concatenate(parts, axis=1)
            if x is None:
                # Not yet float32, which would lose digits that are still needed to check what it loses.
                x = empty((rows, block.shape[1]), np.dtype(np.float64))
                for column, part in zip(features, parts, strict=True):
                    names += _names(column, part.shape[1], categories.get(column))
            if block.shape[1] != x.shape[1]:
                raise UserError(
                    f"task.data.features: {file.path} has lists of different lengths; give every row as many numbers"
                )
            x[start + row : start + row + len(block)] = block
            row += len(block)
        start += row
    return (np.zeros((0, len(features))) if x is None else x), names


def _names(column: str, width: int, categories: np.ndarray | None) -> list[str]:
    """Names of a column's features: `sex=f` for a category, `pixels[0]` for an entry of a list."""
    if categories is not None:
        return [f"{column}={value}" for value in categories]
    return [column] if width == 1 else [f"{column}[{i}]" for i in range(width)]


def _numbers(values: "Series[Any]", column: str, path: Path, row: int, columns: Columns) -> np.ndarray:
    """A column of numbers as (rows, 1), of lists of numbers as (rows, L). row: of the first value. Raises UserError."""
    _check_complete(values, column, path, row, columns)
    array = _stacked(values.to_numpy(), column, path, "features")
    if not len(array):
        return np.zeros((0, 1))
    if array.dtype.kind not in "biuf" or array.ndim > 2:
        raise UserError(
            f"task.data.features: column {column!r} of {path} has values that are not numbers, such as "
            f"{_text(array)!r}; name it in task.data.one_hot if it is a category, or leave it out of task.data.features"
        )
    array = array.reshape(len(array), -1)
    if array.dtype.kind in "iu" and are_rounded(array, np.float64, (0,)).any():
        raise UserError(
            f"task.data.features: column {column!r} of {path} has whole numbers above 9e15 that differ in digits which "
            "floats do not keep; subtract a constant from them, such as the smallest value, or leave them out"
        )
    return array.astype(np.float64)


def _text(array: np.ndarray) -> Any:
    """The first value that pandas does not read as a number, such as `1_000`; otherwise the first value."""
    return next((value for value in array if not DECIMAL.fullmatch(str(value))), array[0])


def _check_complete(values: "Series[Any]", column: str, path: Path, row: int, columns: Columns) -> None:
    """Raises UserError for missing values, also text of blanks alone."""
    array, missing = values.to_numpy(), values.isna().to_numpy()
    if array.dtype.kind == "O":
        missing = missing | np.array([isinstance(value, str) and not value.strip() for value in array], bool)
    if missing.any():
        row += int(missing.argmax())
        field = _field(path, column, row, columns)
        raise UserError(
            f"task.data.path: column {column!r} of {path} has "
            + (f"{field!r}, which counts as a missing value," if field else "no value")
            + f" in row {row + 1}; fill it in, or remove the row or the column"
            + (", or write it in another way if it is text" if field else "")
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:30]) + (", ..." if len(names) > 30 else "")


# ---- the two formats -------------------------------------------------------------------------------------------------


def _is_parquet(path: Path) -> bool:
    """Whether it is a Parquet file: also one of another ending, and a damaged one."""
    if path.suffix.lower() == ".parquet":
        return True
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _header(path: Path, columns: Columns) -> list[str]:
    """Names of the columns. Raises UserError."""
    # Imported here, since processes that read the cache do not need them.
    if _is_parquet(path):
        from pyarrow import parquet

        try:
            names = list(parquet.read_schema(path).names)
            _check_names(names)
            return names
        except (ValueError, OSError) as error:
            raise _unreadable(path, error) from None
    import pandas as pd

    try:
        _check_rows(path, columns.separator)
        return [str(column) for column in pd.read_csv(path, sep=columns.separator, nrows=0).columns]
    except (ValueError, OSError, csv.Error) as error:
        raise _unreadable(path, error) from None


def _check_names(header: list[str]) -> None:
    if twice := [name for name, count in Counter(header).items() if name and count > 1]:
        raise ValueError(f"two columns are named {twice[0]!r}")


def _check_rows(path: Path, separator: str) -> None:
    """Raises ValueError for a row of empty fields, or with another number of fields than the header.

    pandas would move or drop fields.
    """
    from pyarrow import input_stream

    # `input_stream` also reads compressed files.
    with TextIOWrapper(input_stream(str(path)), encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        header = next(filter(None, reader), [])
        _check_names(header)
        for row in reader:
            is_blank = not any(map(str.strip, row))
            if is_blank and len(row) < 2:
                continue
            if is_blank and len(row) == len(header):
                raise ValueError(f"line {reader.line_num} has only empty fields; remove it")
            if len(row) != len(header):
                surplus = row[len(header) :]
                fix = (
                    f"a field that contains {separator!r} needs quotation marks"
                    if any(surplus) or not surplus
                    else f"remove the {separator!r} at its end"
                )
                raise ValueError(
                    f"line {reader.line_num} has {len(row)} fields, and the header has {len(header)}; {fix}"
                )


def _index(path: Path) -> set[str]:
    """Columns of a Parquet file that were the index of a pandas frame."""
    if not _is_parquet(path):
        return set()
    from pyarrow import parquet

    try:
        metadata = parquet.read_schema(path).pandas_metadata or {}
    except (ValueError, OSError) as error:
        raise _unreadable(path, error) from None
    return {name for name in metadata.get("index_columns", []) if isinstance(name, str)}


def _field(path: Path, column: str, row: int, columns: Columns) -> str:
    """A field of a CSV file as it is written; empty for a Parquet file, which has no spelling of missing values."""
    if _is_parquet(path):
        return ""
    import pandas as pd

    table = pd.read_csv(
        path, sep=columns.separator, index_col=False, usecols=[column], dtype=str, keep_default_na=False
    )
    return str(table[column].iloc[row]).strip()


def _chunks(path: Path, wanted: list[str], text: Collection[str], columns: Columns) -> "Iterator[DataFrame]":
    """Some columns of a table, a few rows at a time. text: columns that stay text in a CSV file. Raises UserError."""
    import pandas as pd
    from pyarrow import ArrowInvalid, parquet

    try:
        if _is_parquet(path):
            with parquet.ParquetFile(path) as file:
                for batch in file.iter_batches(ROWS, columns=wanted):
                    # Otherwise the index of a pandas frame would be no column.
                    yield batch.to_pandas(ignore_metadata=True)
        else:
            types = dict.fromkeys(text, str)
            with pd.read_csv(
                path, sep=columns.separator, index_col=False, chunksize=ROWS, usecols=wanted, dtype=types
            ) as chunks:
                for chunk in chunks:
                    for column in types:
                        chunk[column] = chunk[column].str.strip()
                    yield chunk
    except (ArrowInvalid, ValueError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    kind = "Parquet" if _is_parquet(path) else "CSV"
    return UserError(f"task.data.path: {path} is not a readable {kind} file ({one_line(error)}); write it again")
