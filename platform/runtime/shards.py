"""Parts of an exchange: how its clients are dealt to them, and the message that carries one to a worker."""

import heapq
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Cohort, Exchange, Reduction, Site
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm

EVALUATION = 1_000_000
"""Position of the first exchange of an evaluation; the exchanges of a round are numbered from 0."""


@dataclass(frozen=True)
class ExecutionPlan:
    """How a step runs: one client after the other, perhaps as a CUDA graph, or `chunk` clients at once under vmap."""

    mode: Literal["loop", "graph", "vmap"]
    chunk: int = 1
    compiled: bool = False
    """Under vmap: use torch.compile, which fuses everything except matrix products."""

    @property
    def simpler(self) -> "ExecutionPlan | None":
        """Next plan to try if this one fails: half as many clients at once, or the loop; None: there is none."""
        if self.mode == "graph":
            return ExecutionPlan("loop")
        return replace(self, chunk=self.chunk // 2) if self.chunk > 1 else None


@dataclass(frozen=True)
class WorkShard:
    """A part of one exchange: NumPy arrays, and the step by its name. The broadcast is sent separately."""

    step: str
    clients: np.ndarray
    round: int = 1
    position: int = 0
    """Position of the exchange within its round; index streams differ between positions."""
    site: Site = "clients"
    per_client: Tree = field(default_factory=dict)
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """One per client, float64."""
    weighted_by: str | None = None
    """See Exchange."""
    batches: dict[str, BatchSpec] = field(default_factory=dict)
    reduce: Reduction = "mean"
    plan: ExecutionPlan = ExecutionPlan("loop")
    rows: Any = None
    """Rows of the clients' states, see MappedRows; None: the clients have no states between rounds."""
    scratch: Tree = field(default_factory=dict)
    """Entries that earlier exchanges of the round have added to the clients' states, one row per client."""
    keeps_states: bool = True
    """False: client states that the step returns are dropped (evaluation)."""
    number: int = 0
    """Index of the part: parts stay separate even if one process runs several."""
    variant: int = 0
    """Index of the variant to run: a run may have several variants of an experiment at once."""
    exchange: int = 0
    """Index of its exchange, and of its broadcast, among those that run in parallel."""
    keyed: bool = False
    """See Exchange."""
    constants: str | None = None
    """Fingerprint of the server's model: a worker with another model refuses to continue."""

    @classmethod
    def of(cls, exchange: Exchange, index: int, number: int, positions: np.ndarray) -> Self:
        """Part `number` of an exchange, with its index. positions: of its clients in `Exchange.clients`."""
        weights = np.ones(len(exchange.clients)) if exchange.weights is None else exchange.weights
        return cls(
            step=exchange.step.__name__,
            clients=exchange.clients[positions],
            round=cohort_of(exchange).round,
            position=exchange.position,
            site=exchange.site,
            per_client=tree_map(lambda leaf: leaf[positions].numpy(), exchange.received_per_client),
            weights=np.asarray(weights, dtype=np.float64)[positions],
            weighted_by=exchange.weighted_by,
            batches=dict(exchange.batches),
            reduce=exchange.reduce,
            keeps_states=exchange.site == "clients" and exchange.position < EVALUATION,
            number=number,
            variant=exchange.variant,
            exchange=index,
            keyed=exchange.keyed,
            constants=getattr(owner_of(exchange).task.module, "constants", None),
        )

    def first(self, n: int, batches: dict[str, BatchSpec]) -> Self:
        """The first `n` clients, with other mini-batches, to measure a plan; no state changes."""
        return self.only(np.arange(min(n, len(self.clients))), batches=batches, keeps_states=False)

    def only(self, positions: np.ndarray, **changes: Any) -> Self:
        """Some of the clients, by their positions in `clients`."""
        return replace(
            self,
            clients=self.clients[positions],
            weights=self.weights[positions],
            per_client=tree_map(lambda leaf: leaf[positions], self.per_client),
            rows=None if self.rows is None else self.rows.only(positions),
            scratch=tree_map(lambda leaf: leaf[positions], self.scratch),
            **changes,
        )

    @property
    def fusion_key(self) -> tuple[Any, ...]:
        """Shards with the same key run together: the same step for several variants."""
        batches = tuple(self.batches.items())
        where = (self.number, self.site, self.round, self.position)
        return self.step, *where, self.reduce, self.plan, self.keeps_states, self.keyed, batches


def cohort_of(exchange: Exchange) -> Cohort:
    """Cohort of the exchange's round."""
    assert exchange.cohort is not None, "the server adds it"
    return exchange.cohort


def owner_of(exchange: Exchange) -> ComposedAlgorithm:
    """Algorithm that the step is a method of."""
    return exchange.step.__self__  # type: ignore[attr-defined,no-any-return]


def step_name(step: str, place: Site) -> str:
    """Name of a step and the place where it runs, under which its plan is stored.

    An evaluation that returns its predictions runs under the same plan as one that does not, with the same bits.
    """
    return f"{step.replace('predict_client', 'evaluate_client')}/{place}"


class PlanFailed(Exception):  # noqa: N818
    """A step cannot run under its plan: several clients at once do not fit into memory, or it cannot be captured.

    step: see `step_name`. plan: the one that failed, which has a `simpler` one. reason: message of the error.
    """

    def __init__(self, step: str, plan: ExecutionPlan, reason: str):
        super().__init__(step, plan, reason)
        self.step, self.plan, self.reason = step, plan, reason

    def __str__(self) -> str:
        if self.plan.mode == "graph":
            return f"the step {self.step} cannot run as a CUDA graph ({self.reason})"
        return f"the step {self.step} does not fit into memory with {self.plan.chunk} clients at once"


class ClientCrashed(Exception):  # noqa: N818
    """A worker dies whenever it runs this client, of these variants."""

    def __init__(self, variants: list[int], client: int):
        super().__init__(variants, client)
        self.variants, self.client = variants, client


class ObjectsLost(Exception):  # noqa: N818
    """Results of workers were lost together with the node that had them: the run goes back to its last checkpoint."""


# ---- dealing --------------------------------------------------------------------------------------------------------

Positions = list[np.ndarray]
"""For each part, the positions of its clients in `Exchange.clients`."""


def deal(exchange: Exchange, parts: int) -> Positions:
    """Positions of the clients of each part.

    The work of the cohort is divided evenly, in the same way for every exchange of the round. Each part begins with its
    largest clients: chunks then contain clients with similar numbers of steps, and need little padding.
    """
    clients = exchange.clients
    if exchange.site != "clients" or not len(clients):
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
