"""Large arrays as files that are mapped into memory: one copy per machine, shared by all of its processes."""

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hedgerow.platform.common.memory import require
from hedgerow.platform.common.user_cache import cache_folder

LARGE = 2**26
"""Size in bytes from which an array is built in a file, and passed to other processes as the name of its file."""

BLOCK = 2**24
"""Approximate size in bytes of the part of an array that is processed at a time."""


@dataclass(frozen=True)
class ArrayFile:
    """An array inside a file. size, modified: of the file, to notice that it has changed."""

    path: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    size: int
    modified: int

    def open(self) -> np.ndarray:
        """Maps the array, read-only. Raises OSError if the file is missing here, or has changed."""
        status = Path(self.path).stat()
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
            raise OSError(f"{self.path} has changed")
        return np.asarray(np.memmap(self.path, self.dtype, "r", self.offset, self.shape))


def array_file(array: np.ndarray) -> ArrayFile | None:
    """File that an array is mapped from; None if it is in memory, or not contiguous in its file."""
    root: Any = array
    while isinstance(root, np.ndarray) and isinstance(root.base, np.ndarray):
        root = root.base
    if not isinstance(root, np.memmap) or root.mode == "c" or root.filename is None or not array.flags.c_contiguous:
        return None
    if root.mode != "r":
        root.flush()
    path = Path(root.filename).absolute()
    status = path.stat()
    offset = int(root.offset + array.ctypes.data - root.ctypes.data)
    return ArrayFile(str(path), offset, array.dtype.str, array.shape, status.st_size, status.st_mtime_ns)


def shared_file(array: np.ndarray) -> ArrayFile | None:
    """File of a large array, which other processes of this machine open; None if it is small or in memory."""
    return array_file(array) if array.nbytes >= LARGE else None


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Array to be filled: in memory or, if large, in a file that is deleted when this process ends.

    The file is in the user's cache or, where that has no room or cannot be written, in the folder of temporary files.
    Raises UserError if neither these nor the memory have room.
    """
    size = prod(shape) * dtype.itemsize
    if size >= LARGE:
        for folder in scratch_folders():
            with suppress(OSError):
                return _in_file(shape, dtype, folder)
        require(size, "task.data: its arrays", "set HEDGEROW_CACHE to a folder with more room, or use fewer samples")
    return np.empty(shape, dtype)


def _in_file(shape: tuple[int, ...], dtype: np.dtype, folder: Path) -> np.ndarray:
    """Array in a new file. Raises OSError."""
    handle, file = tempfile.mkstemp(suffix=".npy", dir=folder)
    try:
        array = np.lib.format.open_memmap(file, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):
            # Otherwise the file has holes, and a process that fills one on a full disk is killed.
            os.posix_fallocate(handle, 0, os.fstat(handle).st_size)
        return array
    except OSError:
        Path(file).unlink()
        raise
    finally:
        os.close(handle)


def concatenated(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Arrays one after the other; in a file if they are large."""
    dtype = np.result_type(*(array.dtype for array in arrays))
    target = empty((sum(map(len, arrays)), *arrays[0].shape[1:]), dtype)
    return np.concatenate(arrays, out=target)


def save(array: np.ndarray, path: Path) -> None:
    """Writes an .npy file. A file of `empty` becomes this file, so that it is not copied."""
    file = array_file(array)
    if file and Path(file.path).parent.name.startswith(_prefix()):
        whole = np.load(file.path, mmap_mode="r", allow_pickle=False)
        if (whole.shape, whole.dtype.str) == (file.shape, file.dtype):
            with suppress(OSError):
                path.hardlink_to(file.path)
                return
    np.save(path, array, allow_pickle=False)


def blocks(array: np.ndarray) -> Iterator[slice]:
    """Slices of rows that cover an array, each of about `BLOCK` bytes."""
    step = max(1, BLOCK // max(1, array[:1].nbytes))
    return (slice(start, start + step) for start in range(0, len(array), step))


def rewritten(
    array: np.ndarray, dtype: np.dtype, axes: tuple[int, ...] | None = None, rows: np.ndarray | None = None
) -> np.ndarray:
    """Array with another type, order of axes, or choice of rows; the array itself if nothing changes.

    Works on a block at a time, so that neither a large array nor its copy is ever in memory as a whole.
    """
    if array.dtype == dtype and axes is None and rows is None and array.flags.c_contiguous:
        return array
    rows = np.arange(len(array)) if rows is None else rows
    shape = array.shape if axes is None else tuple(array.shape[axis] for axis in axes)
    target = empty((len(rows), *shape[1:]), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        # What overflows is infinite, which is refused later.
        for part in blocks(target):
            block = array[rows[part]]
            target[part] = block if axes is None else block.transpose(axes)
    return target


def scratch_folders() -> Iterator[Path]:
    """Folders for this process's files, by preference. They are removed when it ends."""
    for parent in (lambda: cache_folder() / "scratch", lambda: Path(tempfile.gettempdir())):
        with suppress(OSError):
            yield _scratch(parent())


@cache
def _scratch(parent: Path) -> Path:
    """Folder of this process's files. Folders of processes of this machine that were killed are removed."""
    parent.mkdir(parents=True, exist_ok=True)
    for folder in parent.glob(f"{_prefix()}*"):
        pid = folder.name.removeprefix(_prefix()).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    mine = Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=parent))
    atexit.register(shutil.rmtree, mine, ignore_errors=True)
    return mine


def _prefix() -> str:
    """First part of the names of this machine's folders."""
    return f"hedgerow-{socket.gethostname()}-"
