"""Assignment of clients to the parts of an exchange."""

import heapq

import numpy as np

from hedgerow.algorithms.core.messages import Exchange
from hedgerow.platform.runtime.shards import cohort_of

Positions = list[np.ndarray]
"""For each part, the positions of its clients in `Exchange.clients`."""


def deal(exchange: Exchange, parts: int) -> Positions:
    """Positions of the clients of each part.

    The work of the cohort is divided evenly, in the same way for every exchange of the round. Each part begins with its
    largest clients: chunks then contain clients with similar numbers of steps, and need little padding.
    """
    clients = exchange.clients
    if exchange.on != "clients" or not len(clients):
        part = clients % parts
        return [np.flatnonzero(part == number) for number in range(parts)]
    cohort = cohort_of(exchange)
    assert cohort.population_sizes is not None, "the server adds them"
    part = longest_first(cohort.sizes, parts)[np.searchsorted(cohort.clients, clients)]
    by_size = np.argsort(-cohort.population_sizes[clients], kind="stable")
    return [by_size[part[by_size] == number] for number in range(parts)]


def longest_first(sizes: np.ndarray, parts: int) -> np.ndarray:
    """Part of each client: the largest client first, each to the part with the least work (Graham, 1969).

    sizes: number of samples of each client. It uses no clock, so that a repeated run adds up the same clients in the
    same sums.
    """
    part = np.arange(len(sizes)) % parts
    if sizes.min() == sizes.max():
        return part
    heap = [(0, number) for number in range(parts)]
    order = np.argsort(-sizes, kind="stable")
    for client, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        load, number = heap[0]
        part[client] = number
        heapq.heapreplace(heap, (load + size, number))
    return part
