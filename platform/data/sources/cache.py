"""Cache of converted data sets: each is converted once and stored as plain arrays in the user's cache folder.

Arrays are mapped from the files of the cache, so that all processes of a machine share one copy.
"""

import hashlib
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import fits, require
from hedgerow.platform.common.user_cache import cache_folder
from hedgerow.platform.data.dataset import Dataset, mistake_in
from hedgerow.platform.data.mapped_arrays import save
from hedgerow.platform.data.sources.source import Source

_FORMAT = 3

_TORN = (OSError, ValueError, KeyError, TypeError)
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
    stamps = [
        [str(f.absolute()), s.st_size, s.st_mtime_ns] for f in config.files(root) if f.exists() for s in [f.stat()]
    ]
    key = json.dumps([_FORMAT, config.model_dump(mode="json"), stamps], sort_keys=True)
    entry = cache_folder() / "data" / f"{config.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    with suppress(*_TORN):
        return _read(entry)
    dataset = _loaded(config, root)
    _write(dataset, entry)
    # Another process may be replacing the entry.
    with suppress(*_TORN):
        return _read(entry)
    return dataset


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
    rest = {}
    for field, value in vars(dataset).items():
        if isinstance(value, np.ndarray):
            save(value, aside / f"{field}.npy")
        else:
            rest[field] = value
    (aside / "fields.json").write_text(json.dumps(rest))
    shutil.rmtree(entry, ignore_errors=True)
    try:
        aside.rename(entry)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)


def _read(entry: Path) -> Dataset:
    fields = json.loads((entry / "fields.json").read_text())
    for file in entry.glob("*.npy"):
        fields[file.stem] = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    dataset = Dataset(**fields | {"class_names": tuple(fields["class_names"])})
    if len(dataset.x_train) != len(dataset.y_train) or len(dataset.x_test) != len(dataset.y_test):
        raise ValueError("torn cache entry")
    return dataset
