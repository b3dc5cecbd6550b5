"""Client states as objects of Ray, for workers on several nodes."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.runtime.shards import ObjectsLost
from hedgerow.platform.runtime.state_store import StateLayout

ROWS = 2**32
"""Largest number of rows of a block."""

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
        of, row = self.of[positions], self.row[positions]
        records = np.empty((len(positions), self.width), np.uint8)
        for block in np.unique(of).tolist():
            records[of == block] = self.blocks[block][row[of == block]]
        return torch.from_numpy(records)

    def write(self, positions: np.ndarray, states: Tree, layout: StateLayout) -> None:
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


class ObjectMemory:
    """Records in objects that the client actors return and this process owns. A place is a block and a row of it.

    Ray keeps them where they were made, in memory or spilled to disk. ObjectsLost says how those of a lost node return.
    """

    is_scattered = True

    def __init__(self, initial: Tensor, most: int):
        self.width = initial.shape[1]
        self._blocks, self._in_use, self._next = dict[int, Any](), Counter[int](), 0
        """References to the blocks, the number of places of each that clients use, and the next one's number."""
        self.put(initial)

    def rows(self, places: np.ndarray, keeps: bool) -> BlockRows:
        ids, of = np.unique(places // ROWS, return_inverse=True)
        return BlockRows([self._blocks[block] for block in ids.tolist()], of, places % ROWS, self.width, keeps)

    def written(self, rows: BlockRows | None, kept: np.ndarray, objects: list[Any]) -> np.ndarray:
        if not kept.any():
            return np.zeros(0, np.int64)
        first, self._next = self._next, self._next + len(objects)
        position = np.flatnonzero(kept)
        places = first * ROWS + position if len(objects) == 1 else (first + position) * ROWS
        self._in_use.update((places // ROWS).tolist())
        self._blocks |= {first + i: block for i, block in enumerate(objects) if self._in_use[first + i]}
        return places

    def release(self, places: np.ndarray) -> None:
        for block, count in Counter((places[places > 0] // ROWS).tolist()).items():
            self._in_use[block] -= count
            if not self._in_use[block]:
                del self._blocks[block], self._in_use[block]

    def read(self, places: np.ndarray) -> Tensor:
        rows = self.rows(places, keeps=False)
        try:
            rows.blocks = ray.get(rows.blocks)
        except RayError as error:
            raise ObjectsLost(str(error)) from error
        return rows.read(np.arange(len(places)))

    def put(self, records: Tensor) -> np.ndarray:
        step = 1 if self.width >= LARGE else len(records)
        objects = [ray.put(some.numpy()) for some in records.split(step)]
        return self.written(None, np.ones(len(records), bool), objects)

    def close(self) -> None:
        self._blocks.clear()
