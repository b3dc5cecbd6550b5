"""Messages of a round: cohorts, exchanges and their results."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from zlib import crc32

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.parts import MessageSize
from hedgerow.algorithms.core.pytree import Tree

MODEL = "model"
"""Key of a client step's metrics that holds the client's own model; it is recorded, not transmitted."""


PREDICTIONS = "predictions"
"""Key of an evaluation step's metrics that holds its predictions, see `Algorithm.predict_client`."""


SPENT = "spent_"
"""Prefix of client-step metrics that count computation: averaged over the clients of an exchange, summed over exchanges
and rounds."""


Weighting = Literal["uniform", "samples"]
"""Weight of a client in a mean: equal, or its number of training samples."""


@dataclass(frozen=True)
class Cohort:
    """Clients of one round."""

    round: int
    """Number of the round, counted from 1."""
    clients: np.ndarray
    """Ids of the participating clients, ascending (int64)."""
    sizes: np.ndarray
    """Number of training samples of each client in `clients`."""
    population: int
    """Total number of clients, m."""
    test_shards: int = 0
    """Number of shards of the shared test set, addressed with `Exchange(on="test")`."""
    seed: int = 0
    """Seed of the experiment."""
    sampled: np.ndarray | None = None
    """Clients sampled before dropouts; None: the same as `clients`."""
    population_sizes: np.ndarray | None = None
    """Number of training samples of each client of the population."""
    weighting: Weighting | None = None
    """Client weights in means as set in the experiment file; None: the default of the algorithm."""

    def subset(self, kept: np.ndarray) -> "Cohort":
        """Returns the cohort restricted to the clients in the mask `kept` (bool)."""
        return replace(self, clients=self.clients[kept], sizes=self.sizes[kept], sampled=self.sampled_clients)

    @property
    def sampled_clients(self) -> np.ndarray:
        """Clients that were sampled for the round, including those that dropped out."""
        return self.clients if self.sampled is None else self.sampled

    def seed_for(self, purpose: str) -> int:
        """Random number below 2^63 for the server part; depends on seed, round and purpose only."""
        rng = np.random.default_rng([self.seed, crc32(b"server"), crc32(purpose.encode()), self.round])
        return int(rng.integers(2**63))

    def uniform(self, purpose: str) -> float:
        """Random number for the server part, uniform in [0, 1); depends on seed, round and purpose only."""
        return self.seed_for(purpose) / 2**63


StepResult = tuple[Tree, Tree, dict[str, Any]]
"""(up, new state, metrics). Metrics are 0-d tensors, recorded and not transmitted: they are
averaged, or count computation if their names start with `SPENT`. Under `MODEL` a step may also return the client's own
model, a tree."""


ClientStep = Callable[[Any, Tree, Tree, ClientData], StepResult]
"""(hp, down, state, data) -> result."""


Reduction = Literal["mean", "sum", "stack"]


@dataclass(frozen=True)
class Exchange:
    """One exchange: broadcast, client work, reduction.

    step: a method of the algorithm, `(hp, down, state, data) -> (up, state, metrics)`, written for one client.
    broadcast: tree that every addressed client receives.
    clients: ids of the addressed clients, ascending.
    per_client: tree whose leaves have a leading client dimension; client i also receives row i, merged into
    `broadcast`.
    batches: specifications of the mini-batches to draw, by stream name.
    reduce: "mean" (weighted), "sum" (weighted) or "stack" (the update of every client, in the order of `clients`).
    weights: one number per addressed client; None: all equal.
    weighted_by: metric of the step that multiplies the client's weight; None: no metric does.
    local_inputs: tree that every addressed client also receives, merged into `broadcast`, without transmission: each
    client can compute it from the shared seed, such as hash functions.
    local_inputs_per_client: the same for inputs that differ between clients, in the form of `per_client`.
    padding_down, padding_up: how many numbers of each client's input and update are only padding to equal shapes, or
    stand for zeros, and are not counted as transmitted.
    on: "clients"; "test" for the shards of the shared test set; "validation" for the shards of the server's validation
    samples; "pool" for one pseudo-client, 0, that has all clients' training and validation samples, and the public
    ones. Only exchanges on "clients" transmit anything.
    keyed: whether the step draws random numbers from `data.key`.
    wire: size of each client's message if the trees of its update do not show it.

    The server adds the following before it passes the exchange on: cohort, of its round; position within the round;
    variant, its index among variants of an experiment.
    """

    step: ClientStep
    broadcast: Tree
    clients: np.ndarray
    per_client: Tree = field(default_factory=dict)
    batches: Mapping[str, BatchSpec] = field(default_factory=dict)
    reduce: Reduction = "mean"
    weights: np.ndarray | None = None
    weighted_by: str | None = None
    local_inputs: Tree = field(default_factory=dict)
    local_inputs_per_client: Tree = field(default_factory=dict)
    padding_down: np.ndarray | None = None
    padding_up: np.ndarray | None = None
    on: Literal["clients", "test", "pool", "validation"] = "clients"
    keyed: bool = False
    wire: MessageSize | None = None
    cohort: Cohort | None = None
    position: int = 0
    variant: int = 0

    @property
    def received(self) -> Tree:
        """Inputs of every addressed client, transmitted or not."""
        return {**self.broadcast, **self.local_inputs}

    @property
    def received_per_client(self) -> Tree:
        """Additional inputs of each client, one row per client, transmitted or not."""
        return {**self.per_client, **self.local_inputs_per_client}


Exchanges = Generator[Exchange | list[Exchange], Any, Any]
"""The server part: yields an exchange and receives its Aggregate, or yields a list and receives a list of them."""


ExchangeSteps = Generator[list[Exchange], Any, Any]
"""Yields exchanges that may run in parallel, and receives a list of their Aggregates."""


POOL = np.zeros(1, int)
"""Client ids of an exchange with `on="pool"`, which runs on all samples in one place."""
