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
    """Share whose worker keeps the state of each client."""
    return clients % shares


def near_states(clients: np.ndarray, sizes: np.ndarray, shares: int) -> np.ndarray:
    """Share of each client of a round that has a state: that of its state, unless that share has too much work.

    A share keeps its largest clients up to an equal part of the work. The others go to the shares with the least work,
    the largest first; their states travel there and back.
    """
    owner = owner_of(clients, shares)
    most = max(int(sizes.max()), -(-int(sizes.sum()) // shares))
    order = np.lexsort((-sizes, owner))
    work = np.cumsum(sizes[order])
    starts = np.searchsorted(owner[order], np.arange(shares))
    before = np.concatenate([[0], work])[starts]
    work -= before[owner[order]]
    kept, moved = order[work <= most], order[work > most]
    done = np.bincount(owner[kept], sizes[kept], shares).astype(int)
    loads = [(load, share) for share, load in enumerate(done.tolist())]
    heapq.heapify(loads)
    for client in moved[np.argsort(-sizes[moved], kind="stable")].tolist():
        load, share = loads[0]
        owner[client] = share
        heapq.heapreplace(loads, (load + int(sizes[client]), share))
    return owner
