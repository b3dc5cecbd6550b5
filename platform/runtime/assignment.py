"""Assignment of clients to shares of the work, and the relative speeds of the shares."""

import heapq
from collections.abc import Iterable, Sequence

import numpy as np

from hedgerow.platform.config.resources import SpeedChange

REVIEW = 5
"""Number of rounds between two comparisons of measured speeds with those in use."""

SMOOTHING = 0.5
"""Weight of the latest measurement in a share's smoothed time per sample."""

TOLERANCE = 0.15
"""Largest relative difference of a share's change of speed from the median of all shares that changes nothing."""

LEAST = 0.05
"""Smallest measured speed, relative to the fastest share."""


def longest_first(sizes: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Share of each client: the largest client first, each to the share that finishes it first.

    sizes: number of samples of each client. speeds: relative speed of each share. For equal speeds the rule is that of
    Graham (1969), else that of Gonzalez, Ibarra and Sahni (1977). It uses no clock, so that a repeated run adds up the
    same clients in the same sums.
    """
    owner = np.arange(len(sizes)) % len(speeds)
    if sizes.min() < sizes.max() or speeds.min() < speeds.max():
        _deal(owner, np.arange(len(sizes)), sizes, np.zeros(len(speeds), int), speeds)
    return owner


def owner_of(clients: np.ndarray, shares: int) -> np.ndarray:
    """Share whose worker keeps the state of each client."""
    return clients % shares


def hosts_of(shares: Sequence[str], workers: Sequence[str]) -> np.ndarray:
    """Worker that runs each share of the work: shares of a kind are dealt to the workers of their kind in turn.

    shares, workers: kind of each.
    """
    hosts, share_kinds, worker_kinds = np.zeros(len(shares), int), np.array(shares), np.array(workers)
    for kind in set(shares):
        own = share_kinds == kind
        hosts[own] = np.resize(np.flatnonzero(worker_kinds == kind), own.sum())
    return hosts


def near_states(clients: np.ndarray, sizes: np.ndarray, speeds: np.ndarray) -> np.ndarray:
    """Share of each client of a round that has a state: that of its state, unless that share has too much work.

    A share keeps its largest clients up to a part of the work in proportion to its speed. The others go to the shares
    that finish them first, the largest first; their states travel there and back.
    """
    shares, relative = len(speeds), speeds / speeds.max()
    owner = owner_of(clients, shares)
    most = np.maximum(sizes.max() * relative, np.ceil(sizes.sum() * relative / relative.sum()))
    order = np.lexsort((-sizes, owner))
    work = np.cumsum(sizes[order])
    starts = np.searchsorted(owner[order], np.arange(shares))
    before = np.concatenate([[0], work])[starts]
    work -= before[owner[order]]
    is_kept = work <= most[owner[order]]
    done = np.bincount(owner[order[is_kept]], sizes[order[is_kept]], shares).astype(int)
    _deal(owner, order[~is_kept], sizes, done, speeds)
    return owner


def _deal(owner: np.ndarray, clients: np.ndarray, sizes: np.ndarray, loads: np.ndarray, speeds: np.ndarray) -> None:
    """Set the share of some clients (positions in `sizes`) in `owner`. loads: work that the shares have already."""
    # Shares of the same speed are in one heap, whose first share is the best of them.
    rates = speeds.tolist()
    by_speed: dict[float, list[tuple[int, int]]] = {}
    for share, load in enumerate(loads.tolist()):
        by_speed.setdefault(rates[share], []).append((load, share))
    heaps = list(by_speed.values())
    for heap in heaps:
        heapq.heapify(heap)
    best, several = heaps[0], len(heaps) > 1
    order = clients[np.argsort(-sizes[clients], kind="stable")]
    for client, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if several:
            _, _, best = min(((heap[0][0] + size) / rates[heap[0][1]], heap[0][1], heap) for heap in heaps)
        load, share = best[0]
        owner[client] = share
        heapq.heapreplace(best, (load + size, share))


def speeds_in(round: int, changes: Iterable[SpeedChange], shares: int) -> np.ndarray:
    """Relative speed of each share in a round: that of the last change up to the round, else equal speeds."""
    speeds = [1.0] * shares
    for change in changes:
        # One process with all shares in one has no use for the speeds of a file.
        if change.from_round <= round and len(change.speeds) == shares:
            speeds = change.speeds
    return np.array(speeds)


def changed_speeds(in_use: np.ndarray, seconds: Sequence[float]) -> np.ndarray | None:
    """Relative speeds with two digits, at most 1; None if all are within the tolerance of those in use.

    seconds: smoothed time per sample of each share.
    """
    speeds = np.maximum(LEAST, np.round(min(seconds) / np.array(seconds), 2))
    change = speeds / in_use
    # The fastest of many shares is often a matter of chance; their median is not.
    return speeds if (np.abs(change / np.median(change) - 1) > TOLERANCE).any() else None
