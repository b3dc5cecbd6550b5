"""States of the clients of one variant: the coordinator owns them, and workers read and write their rows.

A state is a record of bytes. A step reads one row of each of its clients and writes another one, so that a part that is
repeated reads what it read before. The new rows are final once the round is committed.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, flatten, leaves, tree_map
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.atomic_file import Fingerprint
from hedgerow.platform.storage.checkpoint import files_of, read_states, save_tree

ALIGNED = 64
"""Leaves begin at multiples of this many bytes, as torch's own tensors do: kernels may depend on it."""

FILE = 32 * 2**20
"""Approximate size in bytes of one file of states in a checkpoint."""

SHARED_MEMORY = Path("/dev/shm")


class StateLayout:
    """Layout of a client's state as a record of `width` bytes. initial: state of a client that never took part."""

    def __init__(self, initial: Tree):
        self.initial = initial
        # A state without numbers has a record, too.
        self.width = max(ALIGNED, sum(_aligned(leaf.nbytes) for leaf in leaves(initial)))

    @torch.no_grad()
    def pack(self, states: Tree, n: int) -> Tensor:
        """Records (n, width) of stacked states, on the CPU. Raises ValueError for other shapes or types."""
        records = torch.zeros((n, self.width), dtype=torch.uint8)

        def fill(leaf: Tensor, value: Tensor) -> None:
            if (leaf.shape, leaf.dtype) != (value.shape, value.dtype):
                raise ValueError(
                    "a client's state must keep the shapes and types of init_client: a leaf of "
                    f"{tuple(leaf.shape[1:])} {leaf.dtype} cannot become {tuple(value.shape[1:])} {value.dtype}"
                )
            leaf.copy_(value)

        tree_map(fill, self._leaves(records), states)
        return records

    def unpack(self, records: Tensor) -> Tree:
        """Stacked states of records (n, width), on the device of the records."""
        return tree_map(Tensor.contiguous, self._leaves(records))

    def _leaves(self, records: Tensor) -> Tree:
        """States that are stored in records (n, width), as views of their bytes."""
        start, n = 0, records.shape[0]

        def leaf(like: Tensor) -> Tensor:
            nonlocal start
            numbers = records.view(like.dtype).narrow(1, start // like.element_size(), like.numel())
            start += _aligned(like.nbytes)
            return numbers.view(n, *like.shape)

        return tree_map(leaf, self.initial)


class Memory(Protocol):
    """Records of states in numbered places. Place 0 has the initial state, and is never released."""

    is_scattered: bool
    """Whether records are put anew, next to each other, at each checkpoint."""

    def rows(self, places: np.ndarray, keeps: bool) -> Any:
        """Rows of a shard's clients in these places. keeps: whether the step may write new states."""

    def written(self, rows: Any, kept: np.ndarray, objects: list[Any]) -> np.ndarray:
        """Places of the new states in the rows of a shard, for the clients in the mask `kept`.

        objects: references to the new states, where these are objects of Ray.
        """

    def release(self, places: np.ndarray) -> None:
        """Release places that no client uses any more."""

    def read(self, places: np.ndarray) -> Tensor:
        """Records (n, width). Raises ObjectsLost."""

    def put(self, records: Tensor) -> np.ndarray:
        """Places of new records."""

    def close(self) -> None:
        """Release all records."""


class StateStore:
    """States of all clients of a variant.

    initial: state of a client that never took part, which needs no place of its own. clients: size of the population.
    most: number of clients that can take part in the run. memory: where the states are.
    """

    def __init__(
        self,
        initial: Tree,
        clients: int,
        most: int | None = None,
        memory: "Callable[[Tensor, int], Memory] | None" = None,
    ):
        self.layout = StateLayout(initial)
        record = self.layout.pack(tree_map(lambda leaf: leaf[None], initial), 1)
        self.memory = (memory or MappedMemory)(record, most or clients)
        self._final, self._current = np.zeros((2, clients), np.int64)
        """Place of each client's state after the last commit, and after the steps of this round."""
        self._written: list[np.ndarray] = []
        """Clients that steps have written in this round."""
        self._per_file = max(1, FILE // max(1, self.layout.width))
        """Clients with neighbouring ids share a file of a checkpoint; this is their number."""
        self._changed: set[int] = set()
        """Files whose states have changed since the last checkpoint."""
        self._last: Path | None = None

    def begin(self) -> None:
        """Begin a round, or begin it again: forget the states that steps have written since the last commit."""
        for clients in self._written:
            self._move(self._current, clients, self._final[clients])
        self._written = []

    def rows(self, clients: np.ndarray, keeps: bool) -> Any:
        """Rows of some clients for a shard. keeps: whether the step may write new states."""
        return self.memory.rows(self._current[clients], keeps)

    def keep(self, clients: np.ndarray, rows: Any, kept: np.ndarray, objects: list[Any]) -> None:
        """Note that a step has written the states of the clients in the mask `kept` to its rows. See Memory."""
        self._move(self._current, clients[kept], self.memory.written(rows, kept, objects))
        self._written.append(clients[kept])

    def commit(self) -> None:
        """Make the states of the round final."""
        for clients in self._written:
            self._move(self._final, clients, self._current[clients])
            self._changed |= set((clients // self._per_file).tolist())
        self._written = []

    def save(self, folder: Path) -> dict[str, Fingerprint]:
        """Write the final states into the folder of a new checkpoint, between rounds or before a round runs again.

        Files that have not changed since the last checkpoint are linked, and returned with their fingerprints.
        """
        self.begin()
        linked: dict[str, Fingerprint] = {}
        known = files_of(self._last) if self._last else {}
        clients = np.flatnonzero(self._final)
        of = clients // self._per_file
        for number in np.unique(of).tolist():
            name = f"states-{number:08d}.safetensors"
            if self._last and name in known and number not in self._changed:
                # Not every file system has links.
                with suppress(OSError):
                    (folder / name).hardlink_to(self._last / name)
                    linked[name] = known[name]
                    continue
            mine = clients[of == number]
            records = self.memory.read(self._final[mine])
            if self.memory.is_scattered:
                places = self.memory.put(records)
                self.memory.release(self._final[mine])
                self._final[mine] = self._current[mine] = places
            save_tree({"clients": torch.from_numpy(mine), "states": self.layout.unpack(records)}, folder / name)
        return linked

    def saved(self, checkpoint: Path) -> None:
        """Note that the checkpoint of the last `save` is complete."""
        self._last, self._changed = checkpoint, set()

    def load(self, folder: Path | None) -> None:
        """Replace all states with those of a checkpoint, or with the initial ones. Raises DamagedCheckpoint."""
        self.begin()
        self.memory.release(self._final)
        self._final[:] = self._current[:] = 0
        self._last, self._changed = folder, set()
        for clients, states in read_states(folder) if folder else ():
            if flatten(states).keys() != flatten(self.layout.initial).keys():
                raise UserError(
                    f"{folder}: the entries of the client states ({', '.join(sorted(flatten(states)))}) are not those "
                    "of this algorithm; start a new run"
                )
            self._final[clients] = self._current[clients] = self.memory.put(self.layout.pack(states, len(clients)))

    def close(self) -> None:
        """Release the states."""
        self.memory.close()

    def _move(self, places: np.ndarray, clients: np.ndarray, new: np.ndarray) -> None:
        """Change the final or the current places of clients, and release the ones that are neither."""
        old, places[clients] = places[clients], new
        self.memory.release(old[(old != self._final[clients]) & (old != self._current[clients])])


# ---- one machine ----------------------------------------------------------------------------------------------------


class MappedMemory:
    """Records in a file that the processes of a machine map into memory; each that receives it maps the file itself.

    The file ends with the process that made it. initial: record (1, width) of the initial state. most: number of
    clients that can take part in the run, to choose between shared memory and the node's disk.
    """

    is_scattered = False

    def __init__(self, initial: Tensor, most: int):
        self.width = initial.shape[1]
        self.folder = _folder_for(3 * most * self.width)
        self._descriptor, self.name = tempfile.mkstemp(prefix="hedgerow-", dir=self.folder)
        own = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        # Where the system has such a path, the file itself is removed at once: it cannot outlive its process.
        self.path = str(own) if own.exists() else self.name
        if own.exists():
            Path(self.name).unlink()
        self._map: Tensor | None = None
        self.free, self.used, self._room = np.zeros(0, np.int64), 0, 0
        self.put(initial)

    def rows(self, places: np.ndarray, keeps: bool) -> "MappedRows":
        return MappedRows(self, places, self._take(len(places) if keeps else 0))

    def written(self, rows: "MappedRows", kept: np.ndarray, objects: list[Any]) -> np.ndarray:
        self.release(rows.writes[~kept])
        return rows.writes[kept]

    def release(self, places: np.ndarray) -> None:
        self.free = np.concatenate([places[places > 0], self.free])

    def read(self, places: np.ndarray) -> Tensor:
        return _read(self.records, places)

    def put(self, records: Tensor) -> np.ndarray:
        places = self._take(len(records))
        _write(self.records, places, records)
        return places

    def close(self) -> None:
        self._map = None
        os.close(self._descriptor)
        if self.path == self.name:
            Path(self.name).unlink(missing_ok=True)

    @property
    def records(self) -> Tensor:
        """Records (places, width)."""
        if self._map is None:
            self._map = _mapped(self.path, self._room, self.width)
        return self._map

    def _take(self, n: int) -> np.ndarray:
        """Places that are not in use. Raises UserError where the disk or the shared memory is full."""
        again, self.free = self.free[:n], self.free[n:]
        fresh = np.arange(self.used, self.used + n - len(again))
        try:
            # Reserved, since a write to a mapped page for which there is no room would kill the process.
            if len(fresh) and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._descriptor, self.used * self.width, len(fresh) * self.width)
        except OSError as error:
            raise UserError(
                f"the clients' states do not fit into {self.folder} ({error.strerror}); free space there, or set "
                "TMPDIR to a folder with more"
            ) from None
        self.used += len(fresh)
        if self.used > self._room:
            # Twice as many, without reserving them: each change of the size is mapped again.
            self._room, self._map = 2 * self.used, None
            os.ftruncate(self._descriptor, self._room * self.width)
        return np.concatenate([again, fresh])

    def __reduce__(self) -> Any:
        return _MappedThere, (self.name, self.path, self._room, self.width)


@dataclass(frozen=True)
class _MappedThere:
    """The file of another process. name: its first one, since a later file may have the same path."""

    name: str
    path: str
    rows: int
    width: int

    @property
    def records(self) -> Tensor:
        name, known = _maps.get(self.path, ("", None))
        if known is None or name != self.name or len(known) != self.rows:
            known = _mapped(self.path, self.rows, self.width)
            _maps[self.path] = self.name, known
        return known


_maps: dict[str, tuple[str, Tensor]] = {}
"""Names and rows of the files of other processes that this process has mapped, by their paths."""


def release_maps() -> None:
    """Release the files of other processes, whose memory lasts until no process maps them."""
    _maps.clear()


def _mapped(path: str, rows: int, width: int) -> Tensor:
    return torch.from_numpy(np.memmap(path, np.uint8, "r+", shape=(rows, width)))


@dataclass(frozen=True)
class MappedRows:
    """Rows of a mapped file that a shard reads and writes, one of each per client. positions: of its clients."""

    memory: MappedMemory | _MappedThere
    reads: np.ndarray
    writes: np.ndarray
    """Empty if the states do not change."""

    def only(self, positions: np.ndarray) -> "MappedRows":
        """Rows of some of the clients."""
        return MappedRows(
            self.memory, self.reads[positions], self.writes[positions] if len(self.writes) else self.writes
        )

    def read(self, positions: np.ndarray) -> Tensor:
        return _read(self.memory.records, self.reads[positions])

    def write(self, positions: np.ndarray, states: Tree, layout: StateLayout) -> None:
        _write(self.memory.records, self.writes[positions], layout.pack(states, len(positions)))


# Indexing by PyTorch copies byte by byte.


def _read(records: Tensor, places: np.ndarray) -> Tensor:
    return records.index_select(0, torch.from_numpy(places))


def _write(records: Tensor, places: np.ndarray, new: Tensor) -> None:
    records.numpy()[places] = new.numpy()


def _folder_for(size: int) -> Path:
    """Folder for `size` bytes that all processes use: shared memory if they fit into half of it, else the disk.

    The disk is TMPDIR, or /var/tmp, since /tmp is often in memory as well.
    """
    with suppress(OSError):
        free = min(shutil.disk_usage(SHARED_MEMORY).free, psutil.virtual_memory().available)
        if size <= free / 2 and os.access(SHARED_MEMORY, os.W_OK):
            return SHARED_MEMORY
    return Path(os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()))


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
