"""Cache of converted data sets: each is converted once and stored as plain arrays in the user's cache folder.

Arrays are mapped from the files of the cache, so that all processes of a machine share one copy. Each file is compared
with its checksum first; a damaged entry is converted again.
"""

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from hedgerow.platform.common.errors import UserError, one_line, say
from hedgerow.platform.common.memory import fits, require
from hedgerow.platform.common.user_cache import cache_folder, checksum, discard, read_entry, write_entry
from hedgerow.platform.data.dataset import Dataset, mistake_in
from hedgerow.platform.data.mapped_arrays import BLOCK, save
from hedgerow.platform.data.sources.source import Source

_FORMAT = 6

_parsing = threading.Lock()
"""NumPy parses the header of a file; in Python 3.11, parsers in two threads disturb each other (cpython#106905)."""

_DAMAGED = (OSError, ValueError)
"""Exceptions that a missing or damaged entry raises."""


def data_folder(root: Path | None) -> Path:
    """Folder of the data sets: `root` if given, else $HEDGEROW_DATA_ROOT, else ./data."""
    return root or Path(os.environ.get("HEDGEROW_DATA_ROOT") or "data")


def load_dataset(config: Source, root: Path | None = None) -> Dataset:
    """Loads the data set of a source, from the cache if it was converted before; users' own sources are never cached.

    Raises UserError when files are missing or damaged.
    """
    root = data_folder(root)
    if config.is_own:
        return _loaded(config, root)
    # The key contains size and time of the files: changed files are converted again.
    with _readable():
        stamps = [
            [str(f.absolute()), s.st_size, s.st_mtime_ns] for f in config.files(root) if f.exists() for s in [f.stat()]
        ]
    key = json.dumps([_FORMAT, config.model_dump(mode="json"), stamps], sort_keys=True)
    entry = cache_folder() / "data" / f"{config.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    with suppress(*_DAMAGED):
        return _read(entry)
    with _readable():
        dataset = _loaded(config, root)
    try:
        _write(dataset, entry)
    except OSError as error:
        say(
            f"the converted data cannot be stored in {entry.parent} ({one_line(error)}) and are converted by each "
            "command; set HEDGEROW_CACHE to a folder with room that can be written"
        )
        return dataset
    with suppress(*_DAMAGED):
        return _read(entry)
    return dataset


@contextmanager
def _readable() -> Iterator[None]:
    """Context manager that turns an error of the file system into a UserError about its file."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"task.data: {error.filename or 'a file of the data set'} cannot be read ({error.strerror or error}); "
            "restore the file, or its permissions"
        ) from None


def _loaded(config: Source, root: Path) -> Dataset:
    require(8 * config.drawn, "task.data: its samples", "lower its sizes")
    with fits("task.data"):
        dataset = config.load(root)
    if config.is_own and (problem := mistake_in(dataset)):
        raise UserError(f"task.data.name: {config.name}.load {problem}")
    return dataset


def _write(dataset: Dataset, entry: Path) -> None:
    """Writes to a temporary folder and renames it: if two processes convert at once, either result is correct."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=entry.parent))
    try:
        rest, checks = {}, {}
        for field, value in vars(dataset).items():
            if isinstance(value, np.ndarray):
                file = aside / f"{field}.npy"
                save(value, file)
                checks[field] = _checksum(file)
            else:
                rest[field] = value
        write_entry(aside / "fields.json", {"values": rest, "arrays": checks})
        discard(entry)
        with suppress(OSError):
            # Another process may have been first.
            aside.rename(entry)
    finally:
        discard(aside)


def _read(entry: Path) -> Dataset:
    stored = read_entry(entry / "fields.json")
    if stored is None:
        raise ValueError("no entry, or a damaged one")
    fields = stored["values"]
    for field, check in stored["arrays"].items():
        file = entry / f"{field}.npy"
        if _checksum(file) != check:
            raise ValueError(f"{file} is damaged")
        with _parsing:
            fields[field] = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    return Dataset(**fields | {name: tuple(fields[name]) for name in ("class_names", "input_names")})


def _checksum(file: Path) -> str:
    """Checksum of a file, read in blocks: a large array that is mapped later never is in memory as a whole."""
    with file.open("rb") as content:
        return checksum(iter(lambda: content.read(BLOCK), b""))
