"""What an algorithm is: the server's half of a round as a generator of exchanges, the client's half as pure functions.

Nothing here knows Ray, MLflow or files. An executor drives the generator:

    generator = algorithm.round(server, cohort)
    exchange = next(generator)            # what the server sends, and to whom
    ...                                   # the clients work, their answers are reduced
    exchange = generator.send(result)     # until the generator returns the new server state
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.settings import HyperParameters
from hedgerow.algorithms.task import Task
from hedgerow.algorithms.trees import Tree, count, tree_map

MODEL = "model"
"""Among a client step's metrics: the client's own model, which is looked at and not transmitted."""


def beyond(tree: Tree, key: str, number: int) -> str | None:
    """The objection to a hyperparameter that counts parameters of `tree` and asks for more than there are."""
    d = count(tree)
    return None if number <= d else f"algorithm.{key}: {number} is more than the model's {d} parameters; lower it"


SPENT = "spent_"
"""How those of a client step's metrics begin that count what it computed: of each, the mean over an exchange's clients
adds up over exchanges and rounds.
"""


SCORED = 200
"""Samples per batch of an evaluation: more take more memory and no less time."""


def channels_last(t: Tensor) -> Tensor:
    """Images and kernels in the layout in which CPU convolutions are 1.3 to 1.5 times faster; the values stay."""
    return t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t


NARROW = 8
"""Input channels of the narrowest 1x1 convolution that may run in that layout."""


def is_narrow(kernels: Iterable[Tensor]) -> bool:
    """Whether one of these parameters is the kernel of a narrow 1x1 convolution, which needs the default layout.

    On processors with AVX2 and without AVX-512, oneDNN 3.13 (PyTorch 2.15) writes past the end of its buffers in the
    weight gradient of such a convolution with a stride, when activations are in the layout of `channels_last`.
    """
    return any(k.dim() == 4 and k.shape[2:] == (1, 1) and k.shape[1] < NARROW for k in kernels)


Share = Literal["train", "validation", "held_out", "public"]
"""The parts of a client's samples; those that are public all have in common, and their labels are hidden."""


@dataclass(frozen=True)
class Batches:
    """Which mini-batches a client step wants drawn from the client's samples.

    They are drawn outside the step from (seed, round, exchange, stream, client) alone.
    """

    size: int | None = None
    """Samples per batch; None: the whole local data as one batch."""
    epochs: int = 1
    steps: int | None = None
    """Number of batches; None: as many as `epochs` passes give. More than one pass reshuffles for each."""
    shuffle: bool = True
    share: Share = "train"
    """Which of the client's samples: for training; for validation, which the upper level of a bilevel problem learns
    from; those held out for the client's own evaluation (where the partition holds none out, the others); or public
    ones, of which everybody draws the same, in all exchanges of a round, for the same name."""
    of: Sequence[int] | None = None
    """Draw from the samples of these clients in place of the client's own: each batch from one of them, drawn anew.
    Hashable: a tuple or a range."""
    mixed: bool = False
    """With `of`: each sample of a batch from one of them, drawn anew; where `size` is None, all that they have."""
    views: int = 0
    """In how many ways each sample is wanted, each another draw of the task's augmentation; 0: as it is stored."""


@dataclass(frozen=True)
class Batch:
    """One mini-batch. In the batched form it is padded: `mask` is 1 for real samples, `active` for real steps.

    Padding repeats real samples of the same client: it is finite where the client's samples are.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    active: Tensor | float = 1.0
    rows: Tensor | None = None
    """Where the samples stand in the data set: which ones they are."""
    keys: Tensor | None = None
    """(views,) Of what is random about each view, 32 bits in int64; `chance.py` makes numbers of them."""
    view: Callable[[int], Tensor] | None = None
    """The samples in another way, by its number, where several are wanted; `x` is view 0."""


class UnknownStreamError(KeyError):
    """A client step reads a stream that the `batches` of its Exchange do not name."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.stream = stream


@dataclass(frozen=True)
class ClientData:
    """What one client step sees of its client's data.

    `batched` says that the step runs under vmap for a chunk of clients at once; then every tensor carries a hidden
    client dimension, batches are padded, and values must not steer Python control flow.
    """

    x: Tensor
    y: Tensor
    prepare: Callable[[Tensor], Tensor]
    streams: Mapping[str, tuple[Tensor, Tensor]]
    """Stream name -> (indices (steps, size) into x and y, mask (steps, size))."""
    batched: bool
    keys: Mapping[str, Tensor] = field(default_factory=dict)
    """Stream name -> (steps, views), of those whose samples are wanted in several ways."""
    augment: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """What makes the views of raw samples: (samples, key, rows) -> samples."""
    narrow: bool = False
    """Whether the model needs the default layout, see `is_narrow`."""

    def batches(self, stream: str = "train") -> Iterator[Batch]:
        """The mini-batches of a stream, in order."""
        indices, mask = self._stream(stream)
        for step, (rows, real) in enumerate(zip(indices.unbind(0), mask.unbind(0), strict=True)):
            keys = self.keys[stream][step] if stream in self.keys else None
            if not self.batched:
                rows = rows[real]
                if len(rows):
                    yield self._batch(rows, keys)
            else:
                yield self._batch(rows, keys, real.float(), real.any().float())

    def _batch(
        self, rows: Tensor, keys: Tensor | None, mask: Tensor | None = None, active: Tensor | float = 1.0
    ) -> Batch:
        def view(number: int) -> Tensor:
            x = self.x[rows]
            if self.augment is not None and keys is not None:
                x = self.augment(x, keys[number], rows)
            x = self.prepare(x)
            return x if self.batched or self.narrow else channels_last(x)

        several = keys is not None and len(keys) > 1
        return Batch(view(0), self.y[rows], mask, active, rows, keys, view if several else None)

    def steps(self, stream: str = "train") -> Tensor:
        """How many mini-batches of a stream are real: K of the papers. 0-d."""
        return self._stream(stream)[1].any(-1).sum()

    def _stream(self, name: str) -> tuple[Tensor, Tensor]:
        if name not in self.streams:
            raise UnknownStreamError(name)
        return self.streams[name]


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
    """Those of whom these are what is left; None: themselves."""

    def among(self, kept: np.ndarray) -> "Cohort":
        """Those of them that are kept (bool)."""
        return replace(self, clients=self.clients[kept], sizes=self.sizes[kept], sampled=self.everybody)

    @property
    def everybody(self) -> np.ndarray:
        """Those that were sampled for the round, of whom some may have been lost."""
        return self.clients if self.sampled is None else self.sampled

    def draw(self, purpose: str) -> int:
        """A random number for the server's half, below 2^63: from seed, round and purpose alone."""
        rng = np.random.default_rng([self.seed, crc32(b"server"), crc32(purpose.encode()), self.round])
        return int(rng.integers(2**63))

    def chance(self, purpose: str) -> float:
        """The same, uniform in [0, 1)."""
        return self.draw(purpose) / 2**63


ClientStep = Callable[[Any, Tree, Tree, ClientData], tuple[Tree, Tree, dict[str, Any]]]
"""(hp, down, state, data) -> (up, new state, metrics). Metrics are 0-d tensors, recorded and not transmitted: means,
or, where their names begin with `SPENT`, counts; under `MODEL` a step may also show the client's own model, a tree."""

Reduction = Literal["mean", "sum", "stack"]


@dataclass(frozen=True)
class Exchange:
    """One broadcast - client work - reduction.

    step: a method of the algorithm, `(hp, down, state, data) -> (up, state, metrics)`, written for one client.
    down: the tree that every addressed client receives.
    clients: the addressed ids, ascending.
    per_client: a tree whose leaves have a leading client dimension; client i also receives row i, merged into `down`.
    batches: the index streams to draw, by name.
    reduce: "mean" (weighted), "sum" (weighted) or "stack" (every client's answer, in the order of `clients`).
    weights: one number per addressed client; None: all equal.
    known: what every addressed client receives as well, merged into `down`, but which is not transmitted: each could
        make it for itself, such as hash functions, from the seed that all have in common.
    known_per_client: the same of what differs from client to client, in the form of `per_client`.
    padding_down, padding_up: how many numbers of what each client receives, and of its answer, are there only to make
        clients alike, or to stand for zeros, and are not transmitted.
    on: "clients"; "test" for the shards of the shared test set; "pool" for one pseudo-client, 0, that has all clients'
        samples for training and for validation, and the public ones. To the last two nothing is transmitted.
    """

    step: ClientStep
    down: Tree
    clients: np.ndarray
    per_client: Tree = field(default_factory=dict)
    batches: Mapping[str, Batches] = field(default_factory=dict)
    reduce: Reduction = "mean"
    weights: np.ndarray | None = None
    known: Tree = field(default_factory=dict)
    known_per_client: Tree = field(default_factory=dict)
    padding_down: np.ndarray | None = None
    padding_up: np.ndarray | None = None
    on: Literal["clients", "test", "pool"] = "clients"

    @property
    def received(self) -> Tree:
        """What every addressed client is given, transmitted or not."""
        return {**self.down, **self.known}

    @property
    def received_per_client(self) -> Tree:
        """What each one is given beside, a row for each, transmitted or not."""
        return {**self.per_client, **self.known_per_client}


@dataclass(frozen=True)
class Result:
    """What came back from one exchange."""

    up: Tree
    """The reduced tree; empty when nobody was addressed or the step sends nothing up. A stack has one row per kept
    client."""
    kept: np.ndarray
    """Per addressed client, in the order of `Exchange.clients`: whether it entered the reduction (bool). A client that
    diverged, with NaN or infinity in its answer, did not."""
    metrics: dict[str, np.ndarray]
    """One number per addressed client."""
    moved: Tree = field(default_factory=dict)
    """Where client models are followed (`evaluation.model: clients`): the sum, over the kept clients, of how far each
    one's own model lies from where it was when it last took part."""


Exchanges = Generator[Exchange | list[Exchange], Any, Any]
"""The server's half: yields one exchange (and is sent its Result), or a list of them (and is sent their Results)."""


class Algorithm:
    """The server's and the client's half of one round. Subclass it in one file per algorithm.

    hyper: the validated hyperparameters. task: model and loss.
    """

    Hyper: ClassVar[type[HyperParameters]] = HyperParameters

    needs_everybody: ClassVar[bool] = False
    """Whether all clients must take part in every round."""

    in_one_place: ClassVar[bool] = False
    """Whether its rounds are on all clients' samples in one place, and no client takes part in them."""

    has_two_levels: ClassVar[bool] = False
    """Whether its task must be a BilevelTask."""

    needs_validation: ClassVar[bool] = False
    """Whether clients need samples for validation."""

    is_personal: bool = False
    """Whether clients have models of their own, which are scored on what each holds out, and no common one."""

    takes_side: ClassVar[bool] = False
    """Whether it learns with the side loss that its hyperparameters may name."""

    has_client_models: ClassVar[bool] = False
    """Whether the training step shows each client's own model among its metrics, under `MODEL`; `w` of the server's
    state is then a model of the same kind, in whose place their average can be scored."""

    def __init__(self, hyper: Any, task: Task):
        self.hyper = hyper
        self.task = task

    def init_server(self) -> Tree:
        """The server's state before round 1. By convention `w` holds the model."""
        return {"w": self.task.init()}

    def init_client(self) -> Tree:
        """The persistent state of a client before it first takes part; {} when clients are stateless.

        Keys that a step adds to its state and that are not named here last until the round ends.
        """
        return {}

    @property
    def needs_public(self) -> int:
        """How many public samples it needs, at least; 0: none."""
        return 0

    def objection(self) -> str | None:
        """Why it cannot learn this task, and the mend, in a sentence; None: it can."""
        return None

    def objective(self, hp: Any) -> Callable[[Any, Batch], Tensor]:
        """What a client minimises on a mini-batch, (w, batch) -> a 0-d tensor."""
        return self.task.loss

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        """One round: yields exchanges, returns the new server state. A function of its arguments alone."""
        raise NotImplementedError

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        """Score the server's model on the shared test set, unless models are personal, and on `cohort.clients`.

        Returns the two Results.
        """
        down = self.scored(server)
        down = {**down, "w": (yield from self.settled(down["w"], cohort))}
        shards = np.arange(0 if self.is_personal or not self.task.is_scored else cohort.test_shards)
        clients = cohort.clients if self.task.is_scored else cohort.clients[:0]
        once = Batches(SCORED, shuffle=False)
        return (
            yield [
                Exchange(self.score, down, shards, batches={"test": once}, on="test"),
                Exchange(self.score, down, clients, batches={"test": replace(once, share="held_out")}),
            ]
        )

    def settled(self, w: Tree, cohort: Cohort) -> Generator[Exchange, Any, Tree]:
        """The model as it is scored: one that normalises statically gets its statistics from the cohort's clients,
        their averages over the mini-batches of training samples.
        """
        if not self.task.is_static:
            return w
        once = {"statistics": Batches(SCORED, shuffle=False)}
        found = yield Exchange(self.look_at, {"w": w}, cohort.clients, batches=once, weights=cohort.sizes)
        return {**w, **found.up}

    def look_at(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step before an evaluation: the statistics of static normalisation."""
        found = [self.task.statistics(down["w"], batch) for batch in data.batches("statistics")]
        return tree_map(lambda *parts: torch.stack(parts).mean(0), *found), state, {}

    def scored(self, server: Tree) -> Tree:
        """What clients receive to score; `w` is the model of `evaluate_params`."""
        return {"w": self.evaluate_params(server)}

    def evaluate_params(self, server: Tree) -> Tree:
        """The parameters that are reported and saved as the run's model."""
        return server["w"]

    def found(self, server: Tree, test: Result) -> dict[str, float]:
        """What else the scores say, by name. test: of the shards of the test set, or of personal models' owners."""
        return {}

    def report(self, server: Tree) -> dict[str, float]:
        """What else there is to say about the server's state when it is evaluated, by name."""
        return {}

    def histograms(self, server: Tree) -> dict[str, dict[str, Tensor]]:
        """Numbers between 0 and 1 whose histograms tell something: what they are -> of whom -> (number,)."""
        return {}

    def score(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Client step of evaluation: summed loss, correct predictions and sample count of all batches."""
        totals = torch.zeros(3, device=data.x.device)
        for batch in data.batches("test"):
            totals = totals + self.task.score(down["w"], batch)
        loss, correct, samples = totals.unbind(0)
        return {}, state, {"loss": loss, "correct": correct, "samples": samples}
