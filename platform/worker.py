"""A worker: hosts clients, runs their steps, reduces their answers, keeps their states. One per actor."""

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from hedgerow.algorithms.base import Algorithm, Batches, Reduction
from hedgerow.algorithms.trees import Tree, count, leaves, tree_map
from hedgerow.platform.checkpoint import load_tree, save_tree
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.engine import Plan, Samples, Shares, for_each_client
from hedgerow.platform.experiment import Resources
from hedgerow.platform.planning import shortened
from hedgerow.platform.reduce import Partial, finite_clients
from hedgerow.platform.states import ClientStates

# Data and broadcasts are views of shared read-only memory; a worker reads them and never writes.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

PREPARED = 64 * 2**20
"""A training set of up to so many bytes is normalised once, in each worker; a larger one batch by batch."""

TEST_SHARD = 1000
"""Samples per shard of the test set."""


@dataclass(frozen=True)
class Order:
    """A worker's share of one exchange, in a form that travels: trees of NumPy arrays, the step by its name."""

    round: int
    number: int
    """Position of the exchange within its round; index streams differ from one to the next."""
    step: str
    on: Literal["clients", "test"]
    clients: np.ndarray
    per_client: Tree
    weights: np.ndarray
    batches: dict[str, Batches]
    reduce: Reduction
    plan: Plan
    keep_states: bool = True
    """False: what the step does to the client's state is forgotten (evaluation)."""


@dataclass(frozen=True)
class Answer:
    """What a worker returns for an order."""

    partial: Partial
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """Per client of the order: whether its answer was finite and entered the reduction."""
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    """One number per client of the order."""
    up_scalars: int = 0
    up_bytes: int = 0


def test_shards(samples: int) -> int:
    """Into how many shards a test set of `samples` is dealt."""
    return -(-samples // TEST_SHARD)


class Worker:
    """Hosts a share of the clients of one experiment on one device."""

    def __init__(
        self,
        algorithm: Algorithm,
        dataset: Dataset,
        partition: Partition,
        seed: int,
        device: str = "cpu",
        resources: Resources | None = None,
    ):
        resources = resources or Resources()
        self.device = torch.device(device)
        algorithm.task = task = algorithm.task.to(self.device)
        self.algorithm = algorithm
        self.seed = seed
        initial, memory = tree_map(self._load, algorithm.init_client()), int(resources.state_memory_mb * 1e6)
        self.states = ClientStates(initial, len(partition), memory, resources.state_folder)
        train_x, test_x, prepare = self._load(dataset.x_train), self._load(dataset.x_test), task.prepare
        train_y, test_y = self._load(dataset.y_train), self._load(dataset.y_test)
        if 4 * train_x.numel() <= PREPARED:
            train_x, test_x, prepare = prepare(train_x), prepare(test_x), nn.Identity()
        own = Shares(partition.offsets[:-1], partition.train_sizes)
        held_out = Shares(own.offsets + own.sizes, partition.sizes - own.sizes)
        starts = np.arange(test_shards(len(test_y))) * TEST_SHARD
        shards = Shares(starts, np.minimum(len(test_y) - starts, TEST_SHARD))
        self.samples = {
            "clients": Samples(
                train_x, train_y, prepare, partition.order, own, held_out if held_out.sizes.any() else own
            ),
            "test": Samples(test_x, test_y, prepare, np.arange(len(test_y)), shards, shards),
        }

    def run(self, orders: list[Order], downs: list[Tree], committed: int) -> list[Answer]:
        """Carry out this worker's share of the exchanges that run in parallel.

        downs: the broadcast of each order. committed: the last round whose client states are final; states of a later
        round that is not this one are forgotten (that round is being replayed).
        """
        if orders:
            self.states.enter(orders[0].round, orders[0].number, committed)
        return [self._carry_out(order, down) for order, down in zip(orders, downs, strict=True)]

    def _carry_out(self, order: Order, down: Tree) -> Answer:
        partial = Partial(order.reduce)
        if not len(order.clients):
            return Answer(partial)
        hp = self.algorithm.hyper.at(order.round)
        kept: list[np.ndarray] = []
        metrics: dict[str, list[np.ndarray]] = {}
        up_scalars = up_bytes = done = 0
        for chunk in for_each_client(
            getattr(self.algorithm, order.step),
            hp,
            tree_map(self._load, down),
            tree_map(self._load, order.per_client),
            self.states.read if order.on == "clients" else lambda ids: {},
            self.samples[order.on],
            order.batches,
            (self.seed, order.round, order.number),
            order.clients,
            order.plan,
        ):
            n = len(chunk.clients)
            finite = finite_clients(chunk.up, n)
            kept.append(finite.numpy())
            partial.add(chunk.up, torch.from_numpy(order.weights[done : done + n]), finite)
            if chunk.state and order.keep_states:
                self.states.keep(chunk.clients[finite.numpy()], tree_map(lambda leaf, ok=finite: leaf[ok], chunk.state))
            for name, values in chunk.metrics.items():
                metrics.setdefault(name, []).append(values.detach().cpu().double().numpy())
            up_scalars += count(chunk.up)
            up_bytes += sum(leaf.numel() * leaf.element_size() for leaf in leaves(chunk.up))
            done += n
        stacked = {name: np.concatenate(rows) for name, rows in metrics.items()}
        return Answer(partial.to_wire(), np.concatenate(kept), stacked, up_scalars, up_bytes)

    def measure(self, order: Order, down: Tree) -> float:
        """Seconds per chunk under the order's plan, on a few mini-batches of its own clients."""
        n = min(len(order.clients), order.plan.chunk)
        batches = shortened(order.batches)
        order = replace(order, clients=order.clients[:n], weights=order.weights[:n], batches=batches)
        seconds: list[float] = []
        # The first time warms up; then as often as a tenth of a second allows, and once at least.
        while len(seconds) < 2 or (sum(seconds[1:]) < 0.1 and len(seconds) < 20):
            self.states.enter(order.round, 0, order.round - 1)
            start = time.perf_counter()
            self._carry_out(order, down)
            seconds.append(time.perf_counter() - start)
        self.states.enter(order.round, 0, order.round - 1)
        return min(seconds[1:])

    def save_states(self, folder: Path, round: int, name: str = "states") -> None:
        """Make `round` final and write the client states into `folder`: files of a bounded size."""
        self.states.enter(round + 1, 0, round)
        for number, (clients, states) in enumerate(self.states.shards()):
            shard = {"clients": torch.from_numpy(clients), "states": states}
            save_tree(shard, folder / f"{name}-{number:04d}.safetensors")

    def load_states(self, folder: Path | None, owns: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        """Replace the client states by those of this worker's clients in `folder`; None: by the initial ones.

        owns: ids -> bool, which clients live here; None: all.
        """
        self.states.clear()
        for file in sorted(folder.glob("states*.safetensors")) if folder else ():
            clients = load_tree(file, "clients")["clients"].numpy()
            mine = np.ones(len(clients), bool) if owns is None else owns(clients)
            if mine.any():
                states = load_tree(file, "states")["states"]
                self.states.load(clients[mine], tree_map(lambda leaf, mine=mine: leaf[mine], states))

    def _load(self, array: Any) -> torch.Tensor:
        """To this worker's device; on the CPU a view of the same memory, which nobody writes."""
        tensor = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
        return tensor.to(self.device)
