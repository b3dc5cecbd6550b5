"""Fixed-size records of bytes, one per client: in memory up to a budget, beyond it in a file."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.common.errors import UserError


class Rows:
    """Records of `width` bytes for each of `clients` clients; a record that was never written reads as `initial`.

    memory: bytes of records in memory, which stores the clients that are written first; a file stores later ones.
    folder: folder of that file; None: see `spill_folder`.
    """

    # Clients are sampled uniformly, so all records are equally likely to be read, and moving them between memory and
    # file would gain nothing. The file is read and written by pread and pwrite, not mapped: mapped pages count as the
    # process's own memory for as long as the kernel keeps them. With pread and pwrite, pages stay in the kernel's
    # cache, which it releases as soon as memory is needed.

    def __init__(self, initial: np.ndarray, clients: int, memory: int, folder: str | None = None):
        self.width, self.folder = len(initial), folder
        # Record 0 is the initial one, to which all clients point at first. The kernel provides pages of both arrays
        # only when they are written: no array ever grows, and none takes more memory than is in use.
        self.slots = np.zeros(clients, np.int32)
        self.slab = np.empty((1 + min(memory // max(self.width, 1), clients), self.width), np.uint8)
        self.slab[0] = initial
        self.used = 1
        self.file: Any = None

    @property
    def spilled(self) -> int:
        """Number of records in the file."""
        return max(0, self.used - len(self.slab))

    def written(self) -> np.ndarray:
        """Clients that were ever written, in the order of their records in memory and file."""
        clients = np.flatnonzero(self.slots)
        return clients[np.argsort(self.slots[clients])]

    def read(self, clients: np.ndarray, out: np.ndarray) -> None:
        """Copy the records of `clients` into `out` (n, width)."""
        slots = self.slots[clients]
        away = slots >= len(self.slab)
        self.slab.take(np.where(away, 0, slots), axis=0, out=out, mode="clip")
        self._transfer(os.preadv, np.flatnonzero(away), slots, out)

    def write(self, clients: np.ndarray, records: np.ndarray) -> None:
        """Replace the records of distinct `clients` by `records` (n, width). Raises OSError on a full disk."""
        slots = self._slots(clients)
        away = slots >= len(self.slab)
        here = ~away
        # Avoids a copy if all records fit into memory: `records[here]` would be one.
        self.slab[slots[here]] = records if here.all() else records[here]
        self._transfer(os.pwritev, np.flatnonzero(away), slots, records)

    def in_memory(self, clients: np.ndarray) -> np.ndarray | None:
        """Rows of `slab` for distinct `clients`, which the caller writes; None if some of them are in the file."""
        slots = self._slots(clients)
        return None if (slots >= len(self.slab)).any() else slots

    def _slots(self, clients: np.ndarray) -> np.ndarray:
        """Records of distinct clients; those that were never written get new ones."""
        new = clients[self.slots[clients] == 0]
        self.slots[new] = np.arange(self.used, self.used + len(new))
        self.used += len(new)
        return self.slots[clients]

    def clear(self) -> None:
        """Forget all records and release the space of the file."""
        self.slots[:] = 0
        self.used, self.file = 1, None

    def _transfer(self, call: Callable[..., int], rows: np.ndarray, slots: np.ndarray, records: np.ndarray) -> None:
        """Read or write `rows` of `records` at the places of their slots in the file."""
        if not len(rows):
            return
        self.file = self.file or _open_unnamed(self.folder)
        # Neighbours go in one call; records that are written for the first time are all neighbours.
        places = slots[rows].astype(np.int64) - len(self.slab)
        starts = np.flatnonzero((np.diff(rows, prepend=-2) != 1) | (np.diff(places, prepend=-2) != 1))
        for run, place in zip(np.split(rows, starts[1:]), places[starts].tolist(), strict=True):
            rest, offset = records[run[0] : run[-1] + 1].reshape(-1).data, place * self.width
            while rest:
                count = call(self.file.fileno(), [rest], offset)
                if not count:
                    raise OSError("the file of client states ends early")
                rest, offset = rest[count:], offset + count


def spill_folder() -> str:
    """Folder for records that do not fit into memory: TMPDIR, else /var/tmp, else Python's choice.

    It is on the node's own disk. /tmp is often in memory, where nothing would be spilled; a run's folder is often on a
    network.
    """
    return os.environ.get("TMPDIR") or ("/var/tmp" if Path("/var/tmp").is_dir() else tempfile.gettempdir())


def _open_unnamed(folder: str | None) -> Any:
    """Opens a file without a name: its space is released however its process ends."""
    folder = folder or spill_folder()
    try:
        return tempfile.TemporaryFile(dir=folder, buffering=0)
    except OSError as error:
        raise UserError(f"resources.state_folder: cannot write into {folder!r} ({error.strerror})") from None
