"""Messages of a round: cohorts, exchanges and their results."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self, get_args
from zlib import crc32

import numpy as np
from torch import Tensor

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.parts import MessageSize
from hedgerow.algorithms.core.pytree import Tree, leaves

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
    """Number of shards of the shared test set, addressed with `Exchange(site="test")`."""
    seed: int = 0
    """Seed of the experiment."""
    sampled: np.ndarray | None = None
    """Clients sampled before dropouts; None: the same as `clients`."""
    population_sizes: np.ndarray | None = None
    """Number of training samples of each client of the population."""
    weighting: Weighting | None = None
    """Client weights in means as set in the experiment file; None: the default of the algorithm."""
    trial: int | None = None
    """Number of the private trial of a search, whose noise differs from that of the others; None: a run."""

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


class StepResult(NamedTuple):
    """Result of a client step. A plain tuple of its first three entries does as well."""

    update: Tree
    """Update that the client sends."""
    state: Tree = {}  # noqa: RUF012
    """The client's new state."""
    metrics: dict[str, Any] = {}  # noqa: RUF012
    """0-d tensors, recorded and not transmitted: averaged, or counts of computation if their names start with
    `SPENT`."""
    model: Tree | None = None
    """The client's own model, recorded and not transmitted: for the average of the client models, for objectives with
    client state, and for FedEx."""

    @classmethod
    def of(cls, result: "StepResult | tuple[Tree, Tree, dict[str, Any]]") -> Self:
        """The result, with all entries."""
        return cls(*result)


ClientStep = Callable[[Any, Tree, Tree, ClientData], StepResult | tuple[Tree, Tree, dict[str, Any]]]
"""(hp, down, state, data) -> result."""


Reduction = Literal["mean", "sum", "stack"]

Site = Literal["clients", "test", "pool", "validation"]
"""Site where a step runs, see `Exchange.site`."""


@dataclass(frozen=True)
class Exchange:
    """One exchange: broadcast, client work, reduction.

    step: a method of the algorithm, `(hp, down, state, data) -> StepResult`, written for one client.
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
    site: where the step runs: "clients"; "test" for the shards of the shared test set; "validation" for the shards of
    the server's validation samples; "pool" for one pseudo-client, 0, that has all clients' training and validation
    samples, and the public ones. Only exchanges on "clients" transmit anything.
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
    site: Site = "clients"
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

    def objection(self, cohort: Cohort) -> str | None:
        """Returns what is wrong with the exchange, as the predicate of a sentence, and the fix; None if nothing is.

        cohort: of its round or evaluation.
        """
        if self.reduce not in get_args(Reduction):
            return f"has reduce={self.reduce!r}; choose from {', '.join(get_args(Reduction))}"
        if self.site not in get_args(Site):
            return f"has site={self.site!r}; choose from {', '.join(get_args(Site))}"
        return self._clients_objection(cohort) or self._inputs_objection() or self._batches_objection()

    def _clients_objection(self, cohort: Cohort) -> str | None:
        clients = self.clients
        if not isinstance(clients, np.ndarray) or clients.ndim != 1 or clients.dtype.kind not in "iu":
            return "has `clients` that are no array of whole numbers; write cohort.clients"
        if (clients[1:] <= clients[:-1]).any():
            return "has `clients` that are not ascending, or twice there; sort them with np.unique"
        is_known = clients is cohort.clients or self.site != "clients" or np.isin(clients, cohort.clients)
        if not np.all(is_known):
            return f"addresses client {clients[~is_known][0]}, which is not in the cohort; choose from cohort.clients"
        if self.weights is not None and np.shape(self.weights) != clients.shape:
            return (
                f"has weights of shape {np.shape(self.weights)} for {len(clients)} clients; give one number for each "
                "of its clients, such as self.weights(cohort.subset(mask))"
            )
        if self.reduce == "mean" and self.weights is not None and (np.asarray(self.weights) < 0).any():
            return "has a weight below 0, which no mean has; set reduce to 'sum'"
        return None

    def _inputs_objection(self) -> str | None:
        for name in ("broadcast", "local_inputs", "per_client", "local_inputs_per_client"):
            tree = getattr(self, name)
            if not isinstance(tree, dict) or not all(isinstance(leaf, Tensor) for leaf in leaves(tree)):
                return f"has a `{name}` that is no dictionary of tensors; write torch.tensor(...) for a number"
            wrong = (tuple(leaf.shape) for leaf in leaves(tree) if leaf.shape[:1] != (len(self.clients),))
            if name.endswith("per_client") and (shape := next(wrong, None)) is not None:
                return f"has a tensor of shape {shape} in `{name}` for {len(self.clients)} clients; give a row for each"
        return None

    def _batches_objection(self) -> str | None:
        if not isinstance(self.batches, Mapping):
            return "has `batches` that are no dictionary; write batches={'train': BatchSpec(...)}"
        for stream, spec in self.batches.items():
            if not isinstance(spec, BatchSpec):
                return f"has no BatchSpec as stream {stream!r} of its batches; write BatchSpec(...)"
            if reason := spec.objection():
                return f"has a stream {stream!r} with {reason}"
        return None


class Predictions(NamedTuple):
    """Predicted distributions over the classes, and the right classes, sample by sample."""

    log_probabilities: np.ndarray
    """(samples, classes) float32."""
    labels: np.ndarray
    """(samples,) int64, or other targets."""
    outputs: np.ndarray | None = None
    """Outputs of the model, (samples, ...) float32; None: no metric needs them."""


@dataclass(frozen=True)
class Aggregate:
    """Result of one exchange."""

    up: Tree
    """The reduced tree; empty if no client was addressed or the step returns an empty tree. Means and sums are computed
    in float64 and rounded to float32, whatever the type of the update. With `reduce="stack"` it has one row per client
    that contributed, of the type of the update; float32 for bfloat16."""
    contributed: np.ndarray
    """Mask (bool) over the addressed clients, in the order of `Exchange.clients`: whether the client entered the
    reduction. Clients whose update contains NaN or infinity are excluded."""
    metrics: dict[str, np.ndarray]
    """Metric name -> one number per addressed client."""
    client_model_delta: Tree = field(default_factory=dict)
    """Sum over the contributing clients of the change of each client's own model since its last participation. Only
    filled if client models are tracked (`evaluation.model: clients`)."""
    cost: Any = None
    """Communication cost of the exchange, for the server's record (a CommunicationCost)."""
    predictions: Predictions | None = None
    """Predictions on the clients' samples, if the step returns them."""
    expected: float | None = None
    """Expected number of clients, by which a noisy sum was divided; None: by their actual number."""
    repeated: int = 0
    """Number of updates after the first of the same client, which may arrive more than once in an asynchronous step."""

    @property
    def updates(self) -> int:
        """Number of updates that entered the reduction."""
        return int(self.contributed.sum()) + self.repeated

    @property
    def clients(self) -> float:
        """Number of clients that the mean stands for: that of their updates, unless it is private."""
        return self.updates if self.expected is None else self.expected


Exchanges = Generator[Exchange | list[Exchange], Any, Any]
"""The server part: yields an exchange and receives its Aggregate, or yields a list and receives a list of them."""


ExchangeSteps = Generator[list[Exchange], Any, Any]
"""Yields exchanges that may run in parallel, and receives a list of their Aggregates."""


POOL = np.zeros(1, int)
"""Client ids of an exchange with `site="pool"`, which runs on all samples in one place."""
