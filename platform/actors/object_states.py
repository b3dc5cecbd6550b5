"""Client states as objects of Ray, for workers on several nodes."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.runtime.shards import ObjectsLost
from hedgerow.platform.runtime.state_store import StateFiles, StateLayout
from hedgerow.platform.storage.atomic_file import Fingerprint

LARGE = 100_000
"""Size in bytes of a state from which each is an object of its own: a new one of it then releases the old one."""


@dataclass
class BlockRows:
    """Rows of a shard's clients in blocks, which are objects of Ray: arrays (rows, width).

    blocks: references to them; at the worker, the arrays. of, row: block and row of each client.
    """

    blocks: list[Any]
    of: np.ndarray
    row: np.ndarray
    width: int
    keeps: bool
    written: np.ndarray | None = field(default=None, init=False)
    """New records (clients, width), at the worker."""

    def __getstate__(self) -> dict[str, Any]:
        # References travel as arguments of the call, so that Ray sends the blocks.
        return {**self.__dict__, "blocks": [None] * len(self.blocks)}

    def only(self, positions: np.ndarray) -> "BlockRows":
        """Rows of some of the clients."""
        return BlockRows(self.blocks, self.of[positions], self.row[positions], self.width, self.keeps)

    def read(self, positions: np.ndarray) -> Tensor:
        """See StateRows."""
        of, row = self.of[positions], self.row[positions]
        records = np.empty((len(positions), self.width), np.uint8)
        for block in np.unique(of).tolist():
            records[of == block] = self.blocks[block][row[of == block]]
        return torch.from_numpy(records)

    def write(self, positions: np.ndarray, states: Tree, layout: StateLayout) -> None:
        """See StateRows."""
        if self.written is None:
            self.written = np.zeros((len(self.of), self.width), np.uint8)
        self.written[positions] = layout.pack(states, len(positions)).numpy()

    @property
    def objects(self) -> int:
        """Number of objects with the new states."""
        return 0 if not self.keeps else len(self.of) if self.width >= LARGE else 1

    def new_blocks(self) -> list[np.ndarray]:
        """The new states, `objects` arrays."""
        written = np.zeros((0, self.width), np.uint8) if self.written is None else self.written
        if self.objects == 1:
            return [written]
        return [written[i : i + 1] for i in range(self.objects)]


class ObjectStates:
    """States in objects that the client actors return and this process owns.

    Ray keeps them where they were made, in memory or spilled to disk. At each checkpoint the new states are put anew,
    next to each other. What is lost with a node is read from the last checkpoint, see ObjectsLost.
    """

    def __init__(self, initial: Tree, clients: int, most: int | None = None):
        self.layout = StateLayout(initial)
        # Block and row of each client; block 0 is the initial state.
        self._final, self._current = np.zeros((2, clients), np.int64), np.zeros((2, clients), np.int64)
        first = self.layout.pack(tree_map(lambda leaf: leaf[None], initial), 1).numpy()
        self._blocks: dict[int, Any] = {0: ray.put(first)}
        self._next, self._in_use = 1, Counter({0: clients})
        self._written: list[np.ndarray] = []
        self._files = StateFiles(self.layout)

    def begin(self) -> None:
        """See StateStore."""
        for clients in self._written:
            self._current[:, clients] = self._final[:, clients]
        self._written = []
        self._drop_unused()

    def rows(self, clients: np.ndarray, keeps: bool) -> BlockRows:
        """See StateStore."""
        ids, of = np.unique(self._current[0, clients], return_inverse=True)
        blocks = [self._blocks[block] for block in ids.tolist()]
        return BlockRows(blocks, of, self._current[1, clients], self.layout.width, keeps)

    def keep(self, clients: np.ndarray, rows: BlockRows, kept: np.ndarray, objects: list[Any]) -> None:
        """See StateStore."""
        if not kept.any():
            return
        ids = np.arange(self._next, self._next + len(objects))
        self._next += len(objects)
        self._blocks |= dict(zip(ids.tolist(), objects, strict=True))
        shared = len(objects) == 1
        self._current[0, clients[kept]] = ids[0] if shared else ids[kept]
        self._current[1, clients[kept]] = np.flatnonzero(kept) if shared else 0
        self._written.append(clients[kept])

    def commit(self) -> None:
        """See StateStore."""
        for clients in self._written:
            self._move(clients, self._current[:, clients])
            self._files.note(clients)
        self._written = []
        self._drop_unused()

    def save(self, folder: Path) -> dict[str, Fingerprint]:
        """See StateStore."""
        # A round that failed is saved before it runs again from its beginning.
        self.begin()
        linked = self._files.save(folder, self._gathered, np.flatnonzero(self._final[0]))
        self._drop_unused()
        return linked

    def saved(self, checkpoint: Path) -> None:
        """See StateStore."""
        self._files.saved(checkpoint)

    def load(self, folder: Path | None) -> None:
        """See StateStore."""
        everyone = np.arange(self._final.shape[1])
        self._written = []
        self._move(everyone, np.zeros_like(self._final))
        for clients, states in self._files.load(folder):
            self._put(clients, self.layout.pack(states, len(clients)).numpy())
        self._drop_unused()

    def close(self) -> None:
        """Release the objects."""
        self._blocks.clear()

    def _gathered(self, clients: np.ndarray) -> Tree:
        """Final states of some clients, which are put anew, in one block."""
        rows = self.rows(clients, keeps=False)
        try:
            rows.blocks = ray.get(rows.blocks)
        except RayError as error:
            raise ObjectsLost(str(error)) from error
        records = rows.read(np.arange(len(clients)))
        self._put(clients, records.numpy())
        return self.layout.unpack(records)

    def _put(self, clients: np.ndarray, records: np.ndarray) -> None:
        """Make records the final states of clients."""
        step = 1 if self.layout.width >= LARGE else len(clients)
        for start in range(0, len(clients), step):
            some = clients[start : start + step]
            self._blocks[self._next] = ray.put(records[start : start + step])
            self._move(some, np.stack([np.full(len(some), self._next), np.arange(len(some))]))
            self._next += 1

    def _move(self, clients: np.ndarray, places: np.ndarray) -> None:
        """Set the final places (2, n) of the states of clients."""
        self._in_use.subtract(Counter(self._final[0, clients].tolist()))
        self._in_use.update(places[0].tolist())
        self._final[:, clients] = self._current[:, clients] = places

    def _drop_unused(self) -> None:
        """Release blocks that no client refers to."""
        current = {int(block) for clients in self._written for block in self._current[0, clients]}
        for block in [block for block in self._blocks if block and self._in_use[block] <= 0 and block not in current]:
            del self._blocks[block], self._in_use[block]
