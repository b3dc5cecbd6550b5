"""What travels in a round: the cohort, exchanges, and their results."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.parts import MessageSize
from hedgerow.algorithms.core.pytree import Tree

MODEL = "model"
"""Among a client step's metrics: the client's own model, which is looked at and not transmitted."""


SPENT = "spent_"
"""How those of a client step's metrics begin that count what it computed: of each, the mean over an exchange's clients
adds up over exchanges and rounds.
"""


Weighting = Literal["uniform", "samples"]
"""Weight of a client in a mean: equal, or its number of training samples."""


@dataclass(frozen=True)
class Cohort:
    """The clients of one round."""

    round: int
    """Counted from 1."""
    clients: np.ndarray
    """Sampled client ids, ascending (int64)."""
    sizes: np.ndarray
    """Number of training samples of each sampled client."""
    population: int
    """Number of all clients, m."""
    test_shards: int = 0
    """The shared test set is dealt into this many shards, addressed with `Exchange(on="test")`."""
    seed: int = 0
    """The experiment's."""
    sampled: np.ndarray | None = None
    """Clients sampled before dropouts; None: the same as `clients`."""
    population_sizes: np.ndarray | None = None
    """Number of training samples of each client of the population."""
    is_stateless: bool = False
    """Whether clients keep nothing from round to round, so that any worker may run any client."""
    weighting: Weighting | None = None
    """How clients count in means, as the experiment file has it; None: as the algorithm does by default."""

    def subset(self, kept: np.ndarray) -> "Cohort":
        """Those of them that are kept (bool)."""
        return replace(self, clients=self.clients[kept], sizes=self.sizes[kept], sampled=self.sampled_clients)

    @property
    def sampled_clients(self) -> np.ndarray:
        """Those that were sampled for the round, of whom some may have been lost."""
        return self.clients if self.sampled is None else self.sampled

    def seed_for(self, purpose: str) -> int:
        """A random number for the server's half, below 2^63: from seed, round and purpose alone."""
        rng = np.random.default_rng([self.seed, crc32(b"server"), crc32(purpose.encode()), self.round])
        return int(rng.integers(2**63))

    def uniform(self, purpose: str) -> float:
        """The same, uniform in [0, 1)."""
        return self.seed_for(purpose) / 2**63


ClientStep = Callable[[Any, Tree, Tree, ClientData], tuple[Tree, Tree, dict[str, Any]]]
"""(hp, down, state, data) -> (up, new state, metrics). Metrics are 0-d tensors, recorded and not transmitted: means,
or, where their names begin with `SPENT`, counts; under `MODEL` a step may also show the client's own model, a tree."""


Reduction = Literal["mean", "sum", "stack"]


@dataclass(frozen=True)
class Exchange:
    """One broadcast - client work - reduction.

    step: a method of the algorithm, `(hp, down, state, data) -> (up, state, metrics)`, written for one client.
    broadcast: the tree that every addressed client receives.
    clients: the addressed ids, ascending.
    per_client: a tree whose leaves have a leading client dimension; client i also receives row i, merged into
        `broadcast`.
    batches: the index streams to draw, by name.
    reduce: "mean" (weighted), "sum" (weighted) or "stack" (every client's answer, in the order of `clients`).
    weights: one number per addressed client; None: all equal.
    local_inputs: a tree that every addressed client receives as well, merged into `broadcast`, and that is not
        transmitted: each could make it for itself, such as hash functions, from the seed that all have in common.
    local_inputs_per_client: the same for what differs from client to client, in the form of `per_client`.
    padding_down, padding_up: how many numbers of what each client receives, and of its answer, are there only to make
        clients alike, or to stand for zeros, and are not transmitted.
    on: "clients"; "test" for the shards of the shared test set; "pool" for one pseudo-client, 0, that has all clients'
        samples for training and for validation, and the public ones. To the last two nothing is transmitted.
    keyed: whether the step draws random numbers from `data.key`.
    wire: what each client sends, where the trees of its answer do not show it.

    The server adds, before it hands the exchange on: cohort, that of its round; position within the round;
    committed_round, the last one whose client states are final; variant, its number among variants of an experiment.
    """

    step: ClientStep
    broadcast: Tree
    clients: np.ndarray
    per_client: Tree = field(default_factory=dict)
    batches: Mapping[str, BatchSpec] = field(default_factory=dict)
    reduce: Reduction = "mean"
    weights: np.ndarray | None = None
    local_inputs: Tree = field(default_factory=dict)
    local_inputs_per_client: Tree = field(default_factory=dict)
    padding_down: np.ndarray | None = None
    padding_up: np.ndarray | None = None
    on: Literal["clients", "test", "pool"] = "clients"
    keyed: bool = False
    wire: MessageSize | None = None
    cohort: Cohort | None = None
    position: int = 0
    committed_round: int = 0
    variant: int = 0

    @property
    def received(self) -> Tree:
        """What every addressed client is given, transmitted or not."""
        return {**self.broadcast, **self.local_inputs}

    @property
    def received_per_client(self) -> Tree:
        """What each one is given in addition, a row for each, transmitted or not."""
        return {**self.per_client, **self.local_inputs_per_client}


Exchanges = Generator[Exchange | list[Exchange], Any, Any]
"""The server's half: yields an exchange and is sent its Aggregate, or a list of them and is sent their Aggregates."""


POOL = np.zeros(1, int)
"""Whom an exchange addresses that is carried out where all samples are."""
