"""Local work of a round: the samples that the client steps draw."""

from collections.abc import Mapping

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec, Split
from hedgerow.algorithms.core.messages import Exchange, Exchanges
from hedgerow.platform.data.partition import Slices


def counted(exchanges: Exchanges, shares: Mapping[Split, Slices], drawn: list[int]) -> Exchanges:
    """Passes the exchanges of a round on, and appends the number of samples that each of them draws to `drawn`."""
    reply = None
    while True:
        try:
            request = exchanges.send(reply)
        except StopIteration as stop:
            return stop.value
        for exchange in request if isinstance(request, list) else [request]:
            drawn.append(drawn_samples(exchange, shares))
        reply = yield request


def drawn_samples(exchange: Exchange, shares: Mapping[Split, Slices]) -> int:
    """Number of samples in all mini-batches of an exchange, over its clients; a sample counts once in each pass.

    For first-order methods, this is the number of sample gradients. It is exact, except for batches that come from one
    of several clients each, for which it is the rounded mean. shares: samples of each client, by split.
    """
    if exchange.on not in ("clients", "pool"):
        return 0
    total = 0
    for spec in exchange.batches.values():
        sizes = shares[spec.split].sizes
        if spec.split == "public":
            sizes = np.repeat(sizes[:1], len(exchange.clients))
        elif exchange.on == "pool":
            sizes = sizes.sum(keepdims=True)
        elif spec.pooled_from is not None:
            total += len(exchange.clients) * _pooled(spec, sizes[np.asarray(spec.pooled_from)])
            continue
        else:
            sizes = sizes[exchange.clients]
        total += int(_per_client(spec, sizes).sum())
    return total


def _per_client(spec: BatchSpec, sizes: np.ndarray) -> np.ndarray:
    """Samples that clients of these sizes draw. The last batch of a pass may be smaller than the others."""
    if spec.steps is None:
        return spec.epochs * sizes
    size = spec.size or max(1, int(sizes.max(initial=1)))
    passes, rest = np.divmod(spec.steps, np.maximum(-(-sizes // size), 1))
    return passes * sizes + np.minimum(rest * size, sizes)


def _pooled(spec: BatchSpec, sizes: np.ndarray) -> int:
    """Samples that one client draws from others of these sizes; see `sampling.draw_pooled_batches`."""
    size = spec.size or int(sizes.sum() if spec.mixed else sizes.max())
    steps = spec.steps or spec.epochs * -(-int(sizes.sum()) // size)
    return steps * size if spec.mixed else round(steps * float(np.minimum(sizes, size).mean()))
