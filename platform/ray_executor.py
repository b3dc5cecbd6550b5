"""Client actors on Ray, and the executor that drives them."""

from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hedgerow.algorithms.trees import Tree, leaves, tree_map
from hedgerow.platform.build import build_algorithms
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.dispatch import owner_of
from hedgerow.platform.executors import WorkerLost
from hedgerow.platform.experiment_file import parse_experiment
from hedgerow.platform.planning import Cost
from hedgerow.platform.process import settle
from hedgerow.platform.worker import Answer, Order, Worker

SMALL = 100_000
"""Bytes up to which Ray sends an argument along with the call."""


@dataclass(frozen=True)
class Hosting:
    """What a client actor is made of. Data and partition lie in Ray's object store, once per node."""

    experiments: list[dict[str, Any]]
    """Several ones differ in floats of their algorithm only."""
    import_path: list[str]
    data: Any
    partition: Any


class ClientActor:
    """A worker in a process of its own, on the CPUs and GPUs that Ray reserves for it."""

    def __init__(self, hosting: Hosting, data: dict[str, Any], partition: dict[str, Any], rank: int, workers: int):
        self.rank, self.workers = rank, workers
        self.host(hosting, data, partition)

    def host(self, hosting: Hosting, data: dict[str, Any], partition: dict[str, Any]) -> None:
        """Serve an experiment, with all its clients at their initial states."""
        resources = hosting.experiments[0]["resources"]
        settle(resources["threads"], hosting.import_path, resources["gpus_per_actor"])
        experiments = [parse_experiment(values) for values in hosting.experiments]
        first, dataset = experiments[0], Dataset.from_arrays(data)
        clients, follow = Partition.from_arrays(partition), first.evaluation.follows
        algorithms = build_algorithms(experiments, dataset, clients)
        self.worker = Worker(algorithms, dataset, clients, first.seed, first.resources, follow)

    def ready(self) -> int:
        return self.rank

    def run(self, orders: list[Order], downs: list[Tree]) -> list[Answer]:
        return self.worker.run(orders, downs)

    def measure(self, orders: list[Order], downs: list[Tree], steps: int | None) -> Cost:
        return self.worker.measure(orders, downs, steps)

    def save_states(self, expert: int, folder: Path, round: int) -> None:
        self.worker.save_states(folder, expert, round, f"states-{self.rank:04d}")

    def load_states(self, expert: int, folder: Path | None) -> None:
        self.worker.load_states(folder, expert, lambda clients: owner_of(clients, self.workers) == self.rank)


class RayExecutor:
    """Drives one client actor per bundle of a placement group; replaces those that die."""

    def __init__(self, hosting: Hosting, group: PlacementGroup, bundles: list[int], cpus: float, gpus: float):
        self.hosting, self.group, self.bundles = hosting, group, bundles
        self.cpus, self.gpus = cpus, gpus
        self.workers = len(bundles)
        self.actors = [self._spawn(rank) for rank in range(self.workers)]

    def run(self, orders: list[list[Order]], downs: list[Tree]) -> list[list[Answer]]:
        broadcast = _broadcast(downs)
        return self._all([actor.run.remote(mine, broadcast) for actor, mine in zip(self.actors, orders, strict=True)])

    def measure(self, orders: list[list[Order]], downs: list[Tree], steps: int | None) -> Cost:
        broadcast = _broadcast(downs)
        # All at once, as in a round: they share caches and memory. Each with its own clients, who may have states.
        working = [(actor, mine) for actor, mine in zip(self.actors, orders, strict=True) if len(mine[0].clients)]
        costs = self._all([actor.measure.remote(mine, broadcast, steps) for actor, mine in working])
        return Cost(*(max(values) for values in zip(*map(astuple, costs), strict=True)))

    def save_states(self, expert: int, folder: Path, round: int) -> None:
        self._all([actor.save_states.remote(expert, folder, round) for actor in self.actors])

    def load_states(self, expert: int, folder: Path | None) -> None:
        self._all([actor.load_states.remote(expert, folder) for actor in self.actors])

    def host(self, hosting: Hosting) -> None:
        """Let the same processes serve another experiment on the same resources. A dead one is replaced."""
        self.hosting = hosting
        with suppress(WorkerLost):
            self._all([actor.host.remote(hosting, hosting.data, hosting.partition) for actor in self.actors])

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)

    def _all(self, calls: list[Any]) -> list[Any]:
        """Wait for calls to the actors. A dead actor is replaced, and WorkerLost raised when all others are done."""
        answers: list[Any] = []
        lost: RayActorError | None = None
        for call in calls:
            try:
                answers.append(ray.get(call))
            except RayActorError as error:
                lost = error
        if lost is not None:
            self._replace_dead()
            raise WorkerLost(str(lost)) from lost
        return answers

    def _replace_dead(self) -> None:
        for rank, actor in enumerate(self.actors):
            try:
                ray.get(actor.ready.remote())
            except RayActorError:
                self.actors[rank] = self._spawn(rank)

    def _spawn(self, rank: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundles[rank])
        options = {"num_cpus": self.cpus, "num_gpus": self.gpus, "scheduling_strategy": strategy}
        h = self.hosting
        return ray.remote(ClientActor).options(**options).remote(h, h.data, h.partition, rank, self.workers)


def _broadcast(downs: list[Tree]) -> Any:
    """Trees for all actors: once in the object store, or, where that would cost more than it saves, as they are."""
    arrays = [tree_map(lambda leaf: np.asarray(leaf.numpy(), order="C"), down) for down in downs]
    return arrays if sum(leaf.nbytes for down in arrays for leaf in leaves(down)) < SMALL else ray.put(arrays)
