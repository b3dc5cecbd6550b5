"""The persistent states of a worker's clients: committed, and pending until the round that changed them is final."""

import numpy as np
import torch

from hedgerow.algorithms.trees import Tree, tree_map


class ClientStates:
    """States by client id. A client that never took part has the algorithm's initial state.

    What a step writes stays pending until the coordinator commits the round, so a round can be replayed.
    """

    def __init__(self, initial: Tree):
        self.initial = initial
        self.committed: dict[int, Tree] = {}
        self.pending: dict[int, Tree] = {}
        self.round = 0

    def enter(self, round: int, number: int, committed: int) -> None:
        """Begin exchange `number` of `round`; rounds up to `committed` are final."""
        if self.round != round or number == 0:
            if self.round <= committed:
                self.commit()
            self.pending = {}
        self.round = round

    def commit(self) -> None:
        """Make the pending states final. Scratch keys, which the algorithm's initial state does not name, end here."""
        for client, state in self.pending.items() if self.initial else ():
            self.committed[client] = {key: state[key] for key in self.initial}
        self.pending = {}

    def read(self, clients: np.ndarray) -> Tree:
        """The states of `clients`, stacked along a new first dimension; {} for stateless clients."""
        states = [self.pending.get(c) or self.committed.get(c) or self.initial for c in clients.tolist()]
        return tree_map(lambda *parts: torch.stack(parts), states[0], *states[1:]) if states[0] else {}

    def keep(self, clients: np.ndarray, states: Tree) -> None:
        """Hold the new states (leaves with a leading client dimension) as pending."""
        for row, client in enumerate(clients.tolist()):
            self.pending[client] = tree_map(lambda leaf, row=row: leaf[row].clone(), states)

    def state_dict(self) -> tuple[np.ndarray, Tree]:
        """The final states: ids (n,), and a tree of arrays with n rows."""
        ids = np.array(sorted(self.committed), dtype=np.int64)
        rows = [self.committed[c] for c in ids.tolist()]
        return ids, tree_map(lambda *parts: torch.stack(parts).cpu(), rows[0], *rows[1:]) if rows else {}

    def clear(self) -> None:
        """Forget everything: every client is at its initial state."""
        self.round, self.pending, self.committed = 0, {}, {}

    def load(self, clients: np.ndarray, states: Tree) -> None:
        """Add final states, as `state_dict` gave them."""
        for row, client in enumerate(clients.tolist()):
            self.committed[client] = tree_map(lambda leaf, row=row: leaf[row].clone(), states)
