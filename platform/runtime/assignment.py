"""Assignment of clients to shares of the work."""

import heapq

import numpy as np


def longest_first(sizes: np.ndarray, shares: int) -> np.ndarray:
    """Share of each client: the largest client first, each to the share with the least work (Graham, 1969).

    The work of a client is its number of samples and not a measured time, so that a repeated run adds up the same
    clients in the same sums.
    """
    owner = np.arange(len(sizes)) % shares
    if sizes.min() < sizes.max():
        loads = [(0, share) for share in range(shares)]
        for client in np.argsort(-sizes, kind="stable").tolist():
            load, share = loads[0]
            owner[client] = share
            heapq.heapreplace(loads, (load + int(sizes[client]), share))
    return owner


def owner_of(clients: np.ndarray, shares: int) -> np.ndarray:
    """Share of each client that has a state."""
    return clients % shares
