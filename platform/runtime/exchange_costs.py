"""Costs of a round, independent of how the machine carries it out: transmitted numbers and drawn samples."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Self

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec, Split
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange, ExchangeSteps
from hedgerow.algorithms.core.pytree import Tree, leaves
from hedgerow.algorithms.slots.middleware import Middleware
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.data.partition import Slices


@dataclass
class CommunicationCost:
    """Scalars and bytes that clients receive (down) and send (up), and the number of exchanges with them.

    Also the peak GPU memory of a worker so far, which is not part of the protocol.
    """

    scalars_down: int = 0
    scalars_up: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    exchanges: int = 0
    """Number of communication rounds: broadcast, client work, answer."""
    gpu_peak_mb: float = 0.0

    def add(self, parallel: Iterable[Self]) -> None:
        """Add the costs of exchanges that ran in parallel: together they are one communication round."""
        exchanges = 0
        for cost in parallel:
            self.scalars_down += cost.scalars_down
            self.scalars_up += cost.scalars_up
            self.bytes_down += cost.bytes_down
            self.bytes_up += cost.bytes_up
            self.gpu_peak_mb = max(self.gpu_peak_mb, cost.gpu_peak_mb)
            exchanges = max(exchanges, cost.exchanges)
        self.exchanges += exchanges

    def add_download(self, tree: Tree, copies: int) -> None:
        """Add a tree that `copies` clients receive."""
        self.scalars_down += copies * sum(leaf.numel() for leaf in leaves(tree))
        self.bytes_down += copies * sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))

    def add_upload(self, scalars: int, size: int) -> None:
        """Add the scalars and bytes that clients sent."""
        self.scalars_up += scalars
        self.bytes_up += size

    def discount_padding(self, down: np.ndarray | None, up: np.ndarray | None) -> None:
        """Subtract padding, given as a number of float32 values per client."""
        for direction, numbers in (("down", down), ("up", up)):
            padding = 0 if numbers is None else int(numbers.sum())
            setattr(self, f"scalars_{direction}", getattr(self, f"scalars_{direction}") - padding)
            setattr(self, f"bytes_{direction}", getattr(self, f"bytes_{direction}") - 4 * padding)

    def as_dict(self) -> dict[str, float]:
        """All figures by name; `gpu_peak_mb` only if a GPU was used."""
        figures = asdict(self)
        return figures if self.gpu_peak_mb else {k: v for k, v in figures.items() if k != "gpu_peak_mb"}

    def transmissions(self, clients: int, model_size: int) -> float:
        """Cost in units of one FedAvg round with as many clients: one model down, one up (thesis, table 2.1)."""
        return (self.scalars_down + self.scalars_up) / (2 * clients * model_size)


class NoContributionsError(Exception):
    """Every client of parallel exchanges diverged: there is nothing to aggregate.

    exchanged: the exchanges with their results.
    """

    def __init__(self, exchanged: list[tuple[Exchange, Aggregate]]):
        super().__init__()
        self.exchanged = exchanged


class Delivery(Middleware):
    """Adds to exchanges what the executor needs, and keeps their results and costs.

    variant: index of the server. first: position of the first exchange. results: one list per group of parallel
    exchanges. Raises NoContributionsError when all clients of a group diverged, and UserError for a wrong exchange.
    """

    def __init__(self, cohort: Cohort, variant: int, first: int = 0):
        self.cohort, self.variant, self.first = cohort, variant, first
        self.results: list[list[Aggregate]] = []
        self.cost = CommunicationCost()

    def parallel(self, exchanges: list[Exchange], number: int) -> ExchangeSteps:
        for exchange in exchanges:
            if reason := exchange.objection(self.cohort):
                where = f"the Exchange of `{exchange.step.__name__}` (round {self.cohort.round})"
                raise UserError(f"algorithm.name: {where} {reason}")
        results = yield [
            replace(exchange, cohort=self.cohort, position=at, variant=self.variant)
            for at, exchange in enumerate(exchanges, self.first + number)
        ]
        self.results.append(results)
        self.cost.add(result.cost for result in results)
        contributed = np.concatenate([result.contributed for result in results])
        if len(contributed) and not contributed.any():
            raise NoContributionsError(list(zip(exchanges, results, strict=True)))
        return results


class SampleCounter(Middleware):
    """Counts the samples that the exchanges of a round draw."""

    def __init__(self, splits: Mapping[Split, Slices]):
        self.splits, self.drawn = splits, 0

    def before(self, exchange: Exchange) -> Exchange:
        self.drawn += drawn_samples(exchange, self.splits)
        return exchange


def drawn_samples(exchange: Exchange, splits: Mapping[Split, Slices]) -> int:
    """Number of samples in all mini-batches of an exchange, over its clients; a sample counts once in each pass.

    For first-order methods, this is the number of sample gradients. It is exact, except for batches that come from one
    of several clients each, for which it is the rounded mean. splits: samples of each client, by split.
    """
    if exchange.site not in ("clients", "pool"):
        return 0
    total = 0
    for spec in exchange.batches.values():
        sizes = splits[spec.split].sizes
        if spec.split == "public":
            sizes = np.repeat(sizes[:1], len(exchange.clients))
        elif exchange.site == "pool":
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
