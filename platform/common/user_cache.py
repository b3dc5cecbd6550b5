"""The user's cache folder, its entries, and the answers of commands, which are stored until the package changes.

The cache is never needed: an entry that is damaged is ignored, and one that cannot be written is left out.
"""

import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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


def read_entry(file: Path) -> Any:
    """JSON value of an entry. None if it is missing or damaged; a damaged entry is removed."""
    with suppress(OSError, ValueError):
        check, _, content = file.read_bytes().partition(b"\n")
        if check == checksum([content]).encode():
            return json.loads(content)
    discard(file)
    return None


def write_entry(file: Path, value: Any) -> None:
    """Stores a JSON value with its checksum, unless another process was first. Raises OSError."""
    content = json.dumps(value).encode()
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as aside:
            aside.write(checksum([content]).encode() + b"\n" + content)
        with suppress(FileExistsError):
            try:
                os.link(name, file)
            except PermissionError:
                # This file system has no hard links.
                Path(name).replace(file)
    finally:
        discard(Path(name))


def discard(path: Path) -> None:
    """Removes a file or a folder of the cache, if it is there and can be removed."""
    with suppress(OSError):
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def checksum(pieces: Iterable[bytes]) -> str:
    """CRC-32 of some bytes: several GB per second, and it notices every flipped bit.

    It is no protection against intent: who can change an entry can also change its checksum.
    """
    value = 0
    for piece in pieces:
        value = zlib.crc32(piece, value)
    return f"{value:08x}"


def cached_answer(question: Sequence[str], answer: Callable[[], Any], state: str = "") -> Any:
    """Returns a JSON value that depends on the package, the question and the state alone.

    The last answer to each question is stored, unless it is empty. It is computed again if the state, a file of the
    package, Python or the installed packages have changed.
    """
    file = cache_folder() / "answers" / f"{_digest(*question)}.json"
    key = _digest(sys.version, str(PACKAGE), *_files(PACKAGE), _installed(), state)
    entry = read_entry(file)
    if entry and entry["key"] == key:
        return entry["answer"]
    value = answer()
    if value:
        discard(file)
        with suppress(OSError):
            write_entry(file, {"key": key, "answer": value})
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
