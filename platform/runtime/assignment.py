"""Which share of the work a client belongs to."""

import heapq

import numpy as np


def longest_first(sizes: np.ndarray, shares: int) -> np.ndarray:
    """The share of each client: the largest client first, each to the share with the least work (Graham, 1969).

    A client's work is its number of samples and not a measured time, so that the same clients meet in the same sums
    whenever a run is repeated.
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
    """The share to which each client with a state belongs."""
    return clients % shares
