"""Records of bytes, one per client: in memory up to a budget, past it in a file."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.common.errors import UserError


class Rows:
    """A record of `width` bytes for each of `clients` clients; one that was never written reads as `initial`.

    memory: bytes of records held in memory; the first clients that are written lie there, later ones in a file.
    folder: where that file lies; None: see `spill_folder`.
    """

    # Clients are sampled uniformly, so no record is likelier to be read than another, and moving them between memory
    # and file would gain nothing. The file is read and written by pread and pwrite, not mapped: mapped pages count as
    # the process's own memory for as long as the kernel leaves them there; these stay in its cache, which it gives up
    # as soon as somebody needs the memory.

    def __init__(self, initial: np.ndarray, clients: int, memory: int, folder: str | None = None):
        self.width, self.folder = len(initial), folder
        # Record 0 is the initial one, to which all clients point at first. The kernel provides neither array's pages
        # before they are written: no array ever grows, and none takes more than is in use.
        self.slots = np.zeros(clients, np.int32)
        self.slab = np.empty((1 + min(memory // max(self.width, 1), clients), self.width), np.uint8)
        self.slab[0] = initial
        self.used = 1
        self.file: Any = None

    @property
    def spilled(self) -> int:
        """How many records lie in the file."""
        return max(0, self.used - len(self.slab))

    def written(self) -> np.ndarray:
        """The clients that were ever written, in the order of their records in memory and file."""
        clients = np.flatnonzero(self.slots)
        return clients[np.argsort(self.slots[clients])]

    def read(self, clients: np.ndarray, out: np.ndarray) -> None:
        """Copy the records of `clients` into `out` (n, width)."""
        slots = self.slots[clients]
        away = slots >= len(self.slab)
        self.slab.take(np.where(away, 0, slots), axis=0, out=out, mode="clip")
        self._transfer(os.preadv, np.flatnonzero(away), slots, out)

    def write(self, clients: np.ndarray, records: np.ndarray) -> None:
        """Replace the records of `clients`, no two the same, by `records` (n, width). Raises OSError on a full disk."""
        new = clients[self.slots[clients] == 0]
        self.slots[new] = np.arange(self.used, self.used + len(new))
        self.used += len(new)
        slots = self.slots[clients]
        away = slots >= len(self.slab)
        here = ~away
        # Not of a copy where all fit: `records[here]` would be one.
        self.slab[slots[here]] = records if here.all() else records[here]
        self._transfer(os.pwritev, np.flatnonzero(away), slots, records)

    def clear(self) -> None:
        """Forget all records; the file gives back its space."""
        self.slots[:] = 0
        self.used, self.file = 1, None

    def _transfer(self, call: Callable[..., int], rows: np.ndarray, slots: np.ndarray, records: np.ndarray) -> None:
        """Read or write `rows` of `records` from or to where their slots lie in the file."""
        if not len(rows):
            return
        self.file = self.file or _open_unnamed(self.folder)
        # Neighbours go in one call; all that are written for the first time are neighbours.
        places = slots[rows].astype(np.int64) - len(self.slab)
        starts = np.flatnonzero((np.diff(rows, prepend=-2) != 1) | (np.diff(places, prepend=-2) != 1))
        for run, place in zip(np.split(rows, starts[1:]), places[starts].tolist(), strict=True):
            rest, offset = records[run[0] : run[-1] + 1].reshape(-1).data, place * self.width
            while rest:
                done = call(self.file.fileno(), [rest], offset)
                if not done:
                    raise OSError("the file of client states ends early")
                rest, offset = rest[done:], offset + done


def spill_folder() -> str:
    """Where records lie that memory has no room for: TMPDIR, else /var/tmp, else Python's choice.

    It is the node's own disk. /tmp is often memory, which would spill nothing; a run's folder is often on a network.
    """
    return os.environ.get("TMPDIR") or ("/var/tmp" if Path("/var/tmp").is_dir() else tempfile.gettempdir())


def _open_unnamed(folder: str | None) -> Any:
    """A file without a name: however its process ends, its space is free again."""
    folder = folder or spill_folder()
    try:
        return tempfile.TemporaryFile(dir=folder, buffering=0)
    except OSError as error:
        raise UserError(f"resources.state_folder: cannot write into {folder!r} ({error.strerror})") from None
