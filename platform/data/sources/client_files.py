"""Files of samples by client: LEAF's JSON folders (Caldas et al. 2018) and TensorFlow Federated's HDF5 files."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hedgerow.platform.common.errors import UserError, one_line, optional_package
from hedgerow.platform.data.zip_members import require_plausible

PARTS = {"train": ("train",), "validation": ("validation", "val"), "test": ("test",)}
"""Parts of a data set, and the names of their folders in LEAF's format."""

STAGES = {"train": 0, "validation": 1, "test": 2}
"""Number of each part in `Dataset.splits`."""

Fields = Mapping[str, Any]
"""Values of a client by the name of the field: lists in JSON files, HDF5 data sets in HDF5 files."""

T = TypeVar("T")


def part_files(folder: Path, stem: str) -> dict[str, list[Path]]:
    """Files of each part: train/*.json, test/*.json and, if there are any, validation/*.json; or STEM_train.h5 and
    STEM_test.h5.

    Raises UserError when there are no files for training or for testing.
    """
    files = {
        part: [file for name in names for file in sorted((folder / name).glob("*.json"))]
        for part, names in PARTS.items()
    }
    if not (files["train"] and files["test"]):
        files = {part: [file] for part in PARTS if (file := folder / f"{stem}_{part}.h5").exists()}
    if not (files.get("train") and files.get("test")):
        raise UserError(
            f"task.data: no LEAF files in {folder.absolute()}: it should contain train/*.json and test/*.json, as "
            f"LEAF's preprocess.sh writes them under data/{stem}/data, or {stem}_train.h5 and {stem}_test.h5, as "
            "TensorFlow Federated has them; set the right folder with --data-root and task.data.path"
        )
    return files


def read_clients(
    files: list[Path], convert: Callable[[Fields], T], wanted: Callable[[list[str]], set[str]] | None = None
) -> dict[str, T]:
    """Samples of each client of one part.

    convert: fields of a client -> its samples; a ValueError, KeyError or TypeError is reported with the file and the
    client. wanted: clients to read, given the names of all clients of a file; None: all. Raises UserError.
    """
    clients: dict[str, T] = {}
    for file in files:
        for client, fields in _leaf(file) if file.suffix == ".json" else _tff(file, wanted):
            if client in clients:
                raise UserError(
                    f"task.data.path: {file}: client {client!r} is also in another file; remove one of them"
                )
            try:
                clients[client] = convert(fields)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, OSError, RuntimeError) as error:
                raise _unreadable(file, f"client {client!r} {_fault(error)}") from None
    return clients


def client_names(file: Path) -> list[str]:
    """Names of the clients of an HDF5 file of TensorFlow Federated."""
    with _hdf5(file) as content, _intact(file):
        return list(_examples(file, content))


def _leaf(file: Path) -> Iterator[tuple[str, Fields]]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        users = content["user_data"]
        if not isinstance(users, dict):
            raise TypeError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise _unreadable(file, "it has no mapping `user_data`") from None
    for user, fields in users.items():
        if not isinstance(fields, dict) or not {"x", "y"} <= fields.keys():
            raise _unreadable(file, f"client {user!r} has no `x` and `y`")
        if not all(isinstance(fields[key], list) for key in "xy") or len(fields["x"]) != len(fields["y"]):
            raise _unreadable(file, f"client {user!r} has `x` and `y` that are not lists of one length")
        yield user, fields


def _tff(file: Path, wanted: Callable[[list[str]], set[str]] | None) -> Iterator[tuple[str, Fields]]:
    with _hdf5(file) as content, _intact(file):
        examples = _examples(file, content)
        names = list(examples)
        chosen = set(names) if wanted is None else wanted(names)
        for client in names:
            if client in chosen:
                group = examples[client]
                if not hasattr(group, "keys"):
                    raise _unreadable(file, f"examples/{client} is not a group")
                for name, values in group.items():
                    if hasattr(values, "nbytes"):
                        what = f"task.data.path: {file}: {name} of client {client!r}"
                        require_plausible(values.nbytes, values.id.get_storage_size(), what, "download the file again")
                yield client, dict(group.items())


def _hdf5(file: Path) -> Any:
    with optional_package(f"task.data.path: {file} is read with h5py", "hdf5"):
        import h5py
    try:
        return h5py.File(file, "r")
    except OSError:
        raise _unreadable(file, "it cannot be opened") from None


@contextmanager
def _intact(file: Path) -> Iterator[None]:
    """Context manager that turns errors of h5py, which are of several types for a damaged file, into a UserError."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise _unreadable(file, one_line(error)) from None


def _examples(file: Path, content: Any) -> Any:
    examples = content.get("examples")
    if examples is None or not hasattr(examples, "keys") or not len(examples):
        raise _unreadable(file, "it has no group `examples` with a group for each client")
    return examples


def _unreadable(file: Path, why: str) -> UserError:
    kind = "a JSON file in LEAF's format" if file.suffix == ".json" else "an HDF5 file of TensorFlow Federated"
    return UserError(f"task.data.path: {file} is not {kind} ({why}); download it again")


def _fault(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"has no `{error.args[0]}`"
    return " ".join(str(error).split()) if type(error) is ValueError else "has values of another type"


def text_of(values: Any) -> list[str]:
    """Strings of a field. Raises ValueError when it has anything else than UTF-8 text."""
    texts = []
    for value in values:
        if isinstance(value, bytes):
            try:
                value = value.decode()
            except UnicodeDecodeError:
                raise ValueError("has text that is not UTF-8") from None
        if not isinstance(value, str):
            raise ValueError("has values that are not text")
        texts.append(value)
    return texts


Samples = tuple[np.ndarray, np.ndarray]
"""Samples (n, ...) and their labels (n,) int64."""


def joined(parts: dict[str, dict[str, Samples]], clients: list[str]) -> dict[str, Any]:
    """Arrays of a data set from the samples of each part and client: the fields of `Dataset` that depend on clients.

    clients: natural clients 0, 1, ... that have training samples. Others' test samples belong to no client, -1;
    others' validation samples are left out.
    """
    numbers = {client: number for number, client in enumerate(clients)}
    rows: list[tuple[int, int, Samples]] = [
        (STAGES[part], numbers.get(client, -1), samples)
        for part, users in parts.items()
        for client, samples in users.items()
        if part == "test" or client in numbers
    ]
    # Clients stay together, as in the file; each has its training samples first.
    rows.sort(key=lambda row: (row[0] == 2, row[1] < 0, row[1], row[0]))
    fields: dict[str, Any] = {}
    for name, is_test in (("train", False), ("test", True)):
        chosen = [row for row in rows if (row[0] == 2) == is_test]
        sizes = [len(y) for _, _, (_, y) in chosen]
        fields[f"x_{name}"] = np.concatenate([x for _, _, (x, _) in chosen])
        fields[f"y_{name}"] = np.concatenate([y for _, _, (_, y) in chosen])
        fields[f"{name}_clients"] = np.repeat(np.array([client for _, client, _ in chosen], np.int64), sizes)
        if not is_test and any(stage for stage, _, _ in chosen):
            fields["splits"] = np.repeat(np.array([stage for stage, _, _ in chosen], np.uint8), sizes)
    return fields
