"""Persistent states of a worker's clients: committed, or pending until the round that changed them is final."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.platform.storage.row_file import Rows

ALIGNED = 64
"""Leaves begin at multiples of this many bytes, as torch's own tensors do: kernels may depend on it."""

SHARD = 32 * 2**20
"""Size in bytes of one part of the states when they are saved."""


class ClientStates:
    """States of `clients` clients, by client id. A client that has never taken part has the algorithm's initial state.

    States that a step returns stay pending until the coordinator commits the round, so a round can be replayed. A
    committed state is one record of bytes; `memory` bytes of records are held in memory, the others in a file in
    `folder`. Copies of another worker's records are stored in the same way, in a quarter of this memory.
    """

    def __init__(self, initial: Tree, clients: int, memory: int = 2**30, folder: str | None = None):
        self.initial = initial
        self.device = next((leaf.device for leaf in leaves(initial)), torch.device("cpu"))
        self.width = sum(_aligned(leaf.nbytes) for leaf in leaves(initial))
        first = self._pack(tree_map(lambda leaf: leaf[None], initial), 1)
        self.committed = Rows(first[0], clients, memory, folder)
        self.copies = Rows(first[0], clients, memory // 4, folder)
        self.copied_since = 0
        self.pending: dict[int, tuple[Tree, int]] = {}
        """Client id -> (stacked states, row of the client). Stacks without references are freed."""
        self.packed: tuple[np.ndarray, np.ndarray] | None = None
        """Clients of the pending states and their records, once these have been copied."""
        self.lent: dict[int, tuple[Tree, int]] = {}
        """Final states of clients of other workers, for the round `lent_for`."""
        self.lent_for = 0
        self.round = 0

    def enter(self, round: int, number: int, committed: int) -> None:
        """Begin exchange `number` of `round`; rounds up to `committed` are final."""
        if self.round != round or number == 0:
            if self.round <= committed:
                self.commit()
            self.pending, self.packed = {}, None
        if self.lent_for != round:
            self.lent = {}
        self.round = round

    def commit(self) -> None:
        """Make the pending states final. Scratch keys, which the algorithm's initial state does not have, are dropped.

        Raises ValueError when a state does not have the shapes and types of the initial one.
        """
        if self.packed:
            self.committed.write(*self.packed)
            self.pending, self.packed = {}, None
            return
        clients = np.array(list(self.pending), dtype=np.int64)
        for stack, positions, rows in self._by_stack(clients) if self.initial else ():
            assert stack is not None
            self.load(clients[positions], tree_map(lambda leaf, rows=rows: _take(leaf, rows), stack))
        self.pending = {}

    def borrow(self, round: int, clients: np.ndarray, states: Tree) -> None:
        """Take final states of another worker's clients, for one round."""
        if self.lent_for != round:
            self.lent, self.lent_for = {}, round
        self.lent |= {client: (states, row) for row, client in enumerate(clients.tolist())}

    def take_back(self, round: int, clients: np.ndarray, states: Tree) -> None:
        """Hold as pending what another worker has made of states in a round."""
        self.enter(round, 1, round - 1)
        self.keep(clients, states)

    def give_back(self, clients: np.ndarray) -> tuple[np.ndarray, Tree]:
        """New states of another worker's clients, and which clients have any; from now on they are not pending here."""
        clients = clients[[client in self.pending for client in clients.tolist()]]
        states = self.read(clients, lasting=True) if len(clients) else {}
        for client in clients.tolist():
            del self.pending[client]
        return clients, states

    def read(self, clients: np.ndarray, lasting: bool = False) -> Tree:
        """States of `clients`, stacked along a new first dimension; {} for stateless clients.

        lasting: without scratch keys, which some clients may have and others not.
        """
        if not self.initial and (lasting or not self.pending):
            return {}
        parts, order = [], []
        for stack, positions, rows in self._by_stack(clients):
            if stack is None:
                parts.append(self._final(clients[positions], self.device))
            else:
                state = {name: stack[name] for name in self.initial} if lasting else stack
                parts.append(tree_map(lambda leaf, rows=rows: _take(leaf, rows), state))
            order += positions
        if len(parts) == 1:
            return parts[0]
        back = torch.from_numpy(np.argsort(order)).to(self.device)
        return tree_map(lambda *pieces: torch.cat(pieces)[back], *parts)

    def keep(self, clients: np.ndarray, states: Tree) -> None:
        """Hold the new states (leaves with a leading client dimension) as pending; they must not change any more."""
        self.packed = None
        self.pending |= {client: (states, row) for row, client in enumerate(clients.tolist())}

    def changes(self, round: int) -> tuple[np.ndarray, np.ndarray]:
        """Clients with new states of a round, which is complete, and their records."""
        clients = np.array(list(self.pending) if self.round == round else [], dtype=np.int64)
        records = np.empty((len(clients), self.width), np.uint8)
        for stack, positions, rows in self._by_stack(clients):
            assert stack is not None
            state = {name: stack[name] for name in self.initial}
            records[positions] = self._pack(tree_map(lambda leaf, rows=rows: _take(leaf, rows), state), len(rows))
        if len(clients):
            self.packed = clients, records
        return clients, records

    def keep_copies(self, since: int, clients: np.ndarray, records: np.ndarray) -> None:
        """Store records of another worker's clients. since: round of the checkpoint that they continue."""
        if since != self.copied_since:
            self.copies.clear()
            self.copied_since = since
        self.copies.write(clients, records)

    def copied(self, since: int, number: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Part `number` of the copies since a checkpoint, of about `SHARD` bytes; None after the last one."""
        if since != self.copied_since or not len(clients := self._part(self.copies, number)):
            return None
        records = np.empty((len(clients), self.width), np.uint8)
        self.copies.read(clients, records)
        return clients, records

    def shards(self) -> Iterator[tuple[np.ndarray, Tree]]:
        """Final states, in parts of about `SHARD` bytes: ids (n,), and a tree with n rows, on the CPU."""
        number = 0
        while part := self.shard(number):
            yield part
            number += 1

    def shard(self, number: int) -> tuple[np.ndarray, Tree] | None:
        """Part `number` of `shards`; None after the last one."""
        ids = self._part(self.committed, number)
        return (ids, self._final(ids, torch.device("cpu"))) if len(ids) else None

    def load(self, clients: np.ndarray, states: Tree) -> None:
        """Set final states, as `shards` yields them."""
        slots = self.committed.in_memory(clients) if self.device.type == "cpu" else None
        if slots is None:
            self.committed.write(clients, self._pack(states, len(clients)))
        else:
            # Without a copy of the records.
            self._fill(torch.from_numpy(self.committed.slab), states, torch.from_numpy(slots))

    def clear(self) -> None:
        """Return every client to its initial state."""
        self.round, self.pending, self.packed, self.lent, self.lent_for = 0, {}, None, {}, 0
        self.committed.clear()
        self.copies.clear()

    def _part(self, rows: Rows, number: int) -> np.ndarray:
        step = max(1, SHARD // max(self.width, 1))
        return rows.written()[number * step : (number + 1) * step]

    def _by_stack(self, clients: np.ndarray) -> list[tuple[Tree | None, list[int], list[int]]]:
        """Groups of clients with pending states in the same stack: (stack, positions in `clients`, rows of the stack).

        The stack is None for clients without a pending state.
        """
        groups: dict[int, tuple[Tree | None, list[int], list[int]]] = {}
        lent = self.lent if self.lent_for == self.round else {}
        for position, client in enumerate(clients.tolist()):
            stack, row = self.pending.get(client) or lent.get(client) or (None, 0)
            _, positions, rows = groups.setdefault(id(stack), (stack, [], []))
            positions.append(position)
            rows.append(row)
        return list(groups.values())

    def _final(self, clients: np.ndarray, device: torch.device) -> Tree:
        records = torch.empty((len(clients), self.width), dtype=torch.uint8)
        self.committed.read(clients, records.numpy())
        return tree_map(lambda leaf: leaf.contiguous(), self._leaves(records.to(device)))

    def _pack(self, states: Tree, n: int) -> np.ndarray:
        """Records (n, width) of stacked states."""
        records = torch.empty((n, self.width), dtype=torch.uint8, device=self.device)
        self._fill(records, states, slice(None))
        return records.cpu().numpy()

    def _fill(self, records: Tensor, states: Tree, rows: slice | Tensor) -> None:
        """Store stacked states in these rows of records."""

        def fill(leaf: Tensor, value: Tensor) -> None:
            if (leaf.shape[1:], leaf.dtype) != (value.shape[1:], value.dtype):
                raise ValueError(
                    "a client's state must keep the shapes and types of init_client: a leaf of "
                    f"{tuple(leaf.shape[1:])} {leaf.dtype} cannot become {tuple(value.shape[1:])} {value.dtype}"
                )
            leaf[rows] = value

        tree_map(fill, self._leaves(records), states)

    def _leaves(self, records: Tensor) -> Tree:
        """States that are stored in records (n, width), as views of their bytes."""
        end = 0

        def leaf(like: Tensor) -> Tensor:
            nonlocal end
            start, end = end, end + _aligned(like.nbytes)
            return records[:, start : start + like.nbytes].view(like.dtype).view(len(records), *like.shape)

        return tree_map(leaf, self.initial)


def _take(leaf: Tensor, rows: list[int]) -> Tensor:
    """Rows of a stack. All rows are returned without a copy, and must not be written to either."""
    return leaf if rows == list(range(len(leaf))) else leaf[rows]


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED
