"""The user's cache folder, and the answers of commands that are stored there until the package changes."""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

PACKAGE = Path(__file__).parents[2]
OTHER_FOLDERS = {"__pycache__", "benchmarks", "build", "docs", "examples", "tests"}
"""Folders of a checkout that are no part of the package."""


def cache_folder() -> Path:
    """$HEDGEROW_CACHE, or the user's cache folder."""
    return Path(os.environ.get("HEDGEROW_CACHE") or user_cache_dir("hedgerow"))


def cached_answer(
    question: Sequence[str], answer: Callable[[], Any], state: str = "", store: Callable[[Any], bool] = bool
) -> Any:
    """Returns a JSON value that depends on the package, the question and the state alone.

    The last answer to each question is stored. It is computed again if the state, a file of the package, Python or the
    installed packages have changed. store: whether an answer may be stored.
    """
    file = cache_folder() / "answers" / f"{_digest(*question)}.json"
    key = _digest(sys.version, str(PACKAGE), *_files(PACKAGE), _installed(), state)
    with suppress(OSError, ValueError, KeyError):
        entry = json.loads(file.read_text(encoding="utf-8"))
        if entry["key"] == key:
            return entry["answer"]
    value = answer()
    if store(value):
        # The answer is also returned where the cache cannot be written.
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            aside = file.with_suffix(f".{os.getpid()}")
            aside.write_text(json.dumps({"key": key, "answer": value}), encoding="utf-8")
            aside.replace(file)
    return value


def _files(folder: Path | str) -> Iterator[str]:
    """Path, size and modification time of every file of the package."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name in OTHER_FOLDERS:
            continue
        if entry.is_dir():
            yield from _files(entry.path)
        else:
            status = entry.stat()
            yield f"{entry.path} {status.st_size} {status.st_mtime_ns}"


def _installed() -> str:
    """Changes when a package is installed, updated or removed."""
    return str(Path(sysconfig.get_path("purelib")).stat().st_mtime_ns)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
