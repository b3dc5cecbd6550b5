"""A worker: hosts clients, runs their steps, reduces their answers, keeps their states. One per actor."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batches, is_narrow
from hedgerow.algorithms.core.messages import MODEL, Reduction
from hedgerow.algorithms.core.pytree import Tree, count, leaves, stack, sub, tree_map
from hedgerow.algorithms.core.task import Task
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.partition import SHARES, Slices
from hedgerow.platform.engine import Plan, Samples, Work, for_each_client
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.planning import Cost, shortened
from hedgerow.platform.process import held, peak, reset_peak
from hedgerow.platform.reduce import Partial, finite_clients
from hedgerow.platform.states import ClientStates
from hedgerow.platform.storage.checkpoint import read_states, save_tree

PREPARED = 64 * 2**20
"""A training set of up to so many bytes is normalised once, in each worker; a larger one batch by batch."""

TEST_SHARD = 1000
"""Samples per shard of the test set."""

EVALUATION = 1_000_000
"""Exchanges are numbered within their round; those of the evaluation from here."""

HIDDEN = -1
"""The label of a public sample: no class, so that a step that looks at it fails."""

LATEST = "latest_model"
"""In a client's state, where client models are followed: its own model when it last took part, at first the initial."""


@dataclass(frozen=True)
class Order:
    """A worker's share of one exchange, in a form that travels: trees of NumPy arrays, the step by its name."""

    round: int
    number: int
    """Position of the exchange within its round; index streams differ from one to the next."""
    step: str
    on: Literal["clients", "test", "pool"]
    clients: np.ndarray
    per_client: Tree
    weights: np.ndarray
    batches: dict[str, Batches]
    reduce: Reduction
    plan: Plan
    keep_states: bool = True
    """False: what the step does to the client's state is forgotten (evaluation)."""
    worker: int = 0
    """Whose share it is: shares stay apart even where one process carries out several."""
    expert: int = 0
    """Whose hyperparameters and client states: an executor may serve several experts at once."""
    begins: bool = True
    """Of exchange 0: False where another order of this exchange has begun the round before."""
    committed: int = 0
    """The last round of this expert whose client states are final; those of a later round that is not this one are
    forgotten (that round is being replayed)."""
    constants: str | None = None
    """Of the coordinator's model: a worker refuses to continue with another one."""

    @property
    def kin(self) -> tuple[Any, ...]:
        """Orders that agree in this are carried out together: the same step for other experts."""
        batches = tuple(self.batches.items())
        place = (self.worker, self.on, self.round, self.number)
        return self.step, *place, self.reduce, self.plan, self.keep_states, batches


@dataclass
class Answer:
    """What a worker returns for an order."""

    partial: Partial
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """Per client of the order: whether its answer was finite and entered the reduction."""
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    """One number per client of the order."""
    up_scalars: int = 0
    up_bytes: int = 0
    gpu_peak_mb: float = 0.0
    """The most that the worker has held on its GPU so far; 0 without one."""
    moved: Partial = field(default_factory=lambda: Partial("sum"))
    """How far the clients' own models moved since they last took part, where they are followed."""

    def add(self, up: Tree, metrics: dict[str, torch.Tensor], weights: np.ndarray, finite: torch.Tensor) -> None:
        """Take in the next clients of the order."""
        self.partial.add(up, torch.from_numpy(weights), finite)
        self.kept = np.concatenate([self.kept, finite.numpy()])
        for name, values in metrics.items():
            so_far = self.metrics.get(name, np.zeros(0))
            self.metrics[name] = np.concatenate([so_far, values.detach().cpu().double().numpy()])
        self.up_scalars += count(up)
        self.up_bytes += sum(leaf.numel() * leaf.element_size() for leaf in leaves(up))


def test_shards(samples: int) -> int:
    """Into how many shards a test set of `samples` is dealt."""
    return -(-samples // TEST_SHARD)


def deal(
    dataset: Dataset,
    partition: Partition,
    task: Task,
    load: Callable[[np.ndarray], torch.Tensor] = torch.from_numpy,
    prepared: int = 0,
) -> dict[Literal["clients", "test", "pool"], Samples]:
    """The samples of each place where a step is carried out.

    load: to the device. prepared: bytes up to which samples are normalised here once.
    """
    train_x, test_x, prepare = load(dataset.x_train), load(dataset.x_test), task.prepare
    labels = dataset.y_train if partition.labels is None else partition.labels
    if partition.public is not None:
        labels = labels.copy()
        labels[partition.public] = HIDDEN
    train_y, test_y = load(labels), load(dataset.y_test)
    # What is augmented is augmented as it is stored.
    if 4 * train_x.numel() <= prepared and task.augment is None:
        train_x, test_x, prepare = prepare(train_x), prepare(test_x), nn.Identity()
    starts = np.arange(test_shards(len(test_y))) * TEST_SHARD
    shards = Slices(starts, np.minimum(len(test_y) - starts, TEST_SHARD))
    pool = partition.pool()
    models = [task.module, *([task.teacher] if task.teacher is not None else [])]
    narrow = is_narrow(parameter for model in models for parameter in model.parameters())
    clients = Samples(train_x, train_y, prepare, partition.places, partition.shares(), task.augment, narrow=narrow)
    test = Samples(test_x, test_y, prepare, np.arange(len(test_y)), dict.fromkeys(SHARES, shards), narrow=narrow)
    return {
        "clients": clients,
        "test": test,
        "pool": Samples(train_x, train_y, prepare, pool.places, pool.shares(), task.augment, clients, narrow),
    }


class Worker:
    """Hosts a share of the clients of one experiment on one device.

    algorithms: one, or, of a pack, one per expert; experts have task, data, clients and seed in common.
    follow: keep each client's latest own model beside its state, for the average of all of them.
    """

    def __init__(
        self,
        algorithms: list[Algorithm],
        dataset: Dataset,
        partition: Partition,
        seed: int,
        resources: Resources | None = None,
        follow: bool = False,
    ):
        resources = resources or Resources()
        self.follow = follow
        self.device = torch.device("cuda" if resources.gpu else "cpu")
        task = algorithms[0].task.to(self.device)
        for algorithm in algorithms:
            algorithm.task = task
        self.algorithms = algorithms
        self.seed = seed
        memory, folder = int(resources.state_memory_mb * 1e6) // len(algorithms), resources.state_folder
        latest = {LATEST: task.init()} if follow else {}
        self.states = [
            ClientStates(tree_map(self._load, algorithm.init_client() | latest), len(partition), memory, folder)
            for algorithm in algorithms
        ]
        self.samples = deal(dataset, partition, task, self._load, PREPARED)
        # What others before this one held in the same process is not its own.
        reset_peak(self.device)
        self.at_rest = held(self.device)

    def run(self, orders: list[Order], downs: list[Tree]) -> list[Answer]:
        """Carry out this worker's share of the exchanges that run in parallel. downs: the broadcast of each order."""
        first = {order.expert: order for order in reversed(orders)}
        for expert, order in first.items():
            compare_constants(self.algorithms[expert].task.module, order.constants)
            number = order.number if order.begins else max(1, order.number)
            self.states[expert].enter(order.round, number, order.committed)
        answers = [Answer(Partial(order.reduce)) for order in orders]
        groups: dict[Any, list[int]] = {}
        for i, (order, down) in enumerate(zip(orders, downs, strict=True)):
            if len(order.clients):
                # A float may decide the shape of a message: such experts do not go together.
                shapes = tuple(leaf.shape for leaf in leaves(down))
                groups.setdefault((order.kin, order.clients.tobytes(), shapes), []).append(i)
        for group in groups.values():
            self._carry_out([orders[i] for i in group], [downs[i] for i in group], [answers[i] for i in group])
        for answer in answers:
            answer.partial, answer.moved = answer.partial.to_wire(), answer.moved.to_wire()
            answer.gpu_peak_mb = peak(self.device) if self.device.type == "cuda" else 0.0
        return answers

    def _carry_out(self, orders: list[Order], downs: list[Tree], answers: list[Answer]) -> None:
        """Run orders that are kin, of the same clients, as one, and share out what comes back."""
        order, clients = orders[0], orders[0].clients
        work = Work(
            step=getattr(self.algorithms[0], order.step),
            hypers=[self.algorithms[o.expert].hyper.at(o.round) for o in orders],
            downs=[tree_map(self._load, down) for down in downs],
            clients=clients,
            per_client=tree_map(lambda *parts: self._load(np.stack(parts)), *(o.per_client for o in orders)),
            states=lambda clients: self._states(orders, clients),
            samples=self.samples[order.on],
            batches=order.batches,
            key=(self.seed, order.round, order.number),
        )
        for chunk in for_each_client(work, order.plan):
            size = chunk.clients.stop - chunk.clients.start
            for i, (mine, answer) in enumerate(zip(orders, answers, strict=True)):
                up, state, metrics = (
                    tree_map(lambda leaf, i=i: leaf[i], tree) for tree in (chunk.up, chunk.state, chunk.metrics)
                )
                finite = finite_clients(up, size)
                model = metrics.pop(MODEL, None)
                answer.add(up, metrics, mine.weights[chunk.clients], finite)
                if mine.on == "clients" and mine.keep_states:
                    self._keep(mine, clients[chunk.clients], state, model, finite, answer)

    def _keep(
        self, order: Order, clients: np.ndarray, state: Tree, model: Tree | None, finite: torch.Tensor, answer: Answer
    ) -> None:
        """Hold the new states of clients that did not diverge. model: their own models, where the step shows them."""
        states = self.states[order.expert]
        if self.follow:
            before = states.read(clients)[LATEST]
            if model is not None:
                answer.moved.add(sub(model, before), torch.ones(len(clients), dtype=torch.float64), finite)
            state = {**state, LATEST: before if model is None else model}
        if state:
            if not finite.all():
                state = tree_map(lambda leaf: leaf[finite.to(leaf.device)], state)
                clients = clients[finite.numpy()]
            states.keep(clients, state)

    def _states(self, orders: list[Order], clients: np.ndarray) -> Tree:
        """The states of some clients, of each order's expert: leaves (orders, clients, ...)."""
        if orders[0].on != "clients":
            return {}
        evaluated = orders[0].number >= EVALUATION
        states = stack(*(self.states[o.expert].read(clients, lasting=evaluated) for o in orders))
        states.pop(LATEST, None)
        return states

    def measure(self, orders: list[Order], downs: list[Tree], steps: int | None) -> Cost:
        """What one chunk of kin orders takes under their plan, on their first clients.

        steps: with so many mini-batches; None: with all those of a round.
        """
        n = orders[0].plan.chunk
        some = [
            replace(
                order,
                clients=order.clients[:n],
                weights=order.weights[:n],
                per_client=tree_map(lambda leaf: leaf[:n], order.per_client),
                batches=shortened(order.batches, steps),
                keep_states=False,
            )
            for order in orders
        ]
        seconds: list[float] = []
        reset_peak(self.device)
        # The first time warms up; then as often as a tenth of a second allows, and once at least.
        while len(seconds) < 2 or (sum(seconds[1:]) < 0.1 and len(seconds) < 20):
            start = time.perf_counter()
            self.run(some, downs)
            seconds.append(time.perf_counter() - start)
        return Cost(min(seconds[1:]), self.at_rest, peak(self.device) - self.at_rest)

    def save_states(self, folder: Path, expert: int, round: int, name: str = "states") -> None:
        """Make `round` final and write an expert's client states into `folder`: files of a bounded size."""
        self.states[expert].enter(round + 1, 0, round)
        for number, (clients, states) in enumerate(self.states[expert].shards()):
            shard = {"clients": torch.from_numpy(clients), "states": states}
            save_tree(shard, folder / f"{name}-{number:04d}.safetensors")

    def load_states(
        self, folder: Path | None, expert: int, owns: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> None:
        """Replace an expert's client states by those of this worker's clients in `folder`; None: by the initial ones.

        owns: ids -> bool, which clients live here; None: all. Raises DamagedCheckpoint.
        """
        states = self.states[expert]
        states.clear()
        everybody = partial(np.ones_like, dtype=bool)
        for clients, mine in read_states(folder, owns or everybody) if folder else ():
            states.load(clients, mine)

    def _load(self, array: Any) -> torch.Tensor:
        """To this worker's device; on the CPU a view of the same memory, which nobody writes."""
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return tensor.to(self.device)
