"""Client actors on Ray, and the executor that drives them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayActorError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hedgerow.algorithms.trees import Tree, tree_map
from hedgerow.platform.build import build_algorithm
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.engine import Plan
from hedgerow.platform.executors import WorkerLost
from hedgerow.platform.experiment_file import parse_experiment
from hedgerow.platform.federated import owner_of
from hedgerow.platform.worker import Answer, Order, Worker


@dataclass(frozen=True)
class Hosting:
    """What a client actor is made of. Data and partition lie in Ray's object store, once per node."""

    experiment: dict[str, Any]
    import_path: list[str]
    data: Any
    partition: Any


def enter_process(import_path: list[str], threads: int) -> None:
    """Prepare a Ray worker's process: the user's modules importable, torch's threads bounded."""
    sys.path[:0] = [entry for entry in import_path if entry not in sys.path]
    torch.set_num_threads(threads)


class ClientActor:
    """A worker in a process of its own, on the CPUs and GPUs that Ray reserves for it."""

    def __init__(self, hosting: Hosting, data: dict[str, Any], partition: dict[str, Any], rank: int, workers: int):
        enter_process(hosting.import_path, hosting.experiment["resources"]["threads"])
        experiment = parse_experiment(hosting.experiment)
        dataset = Dataset.from_arrays(data)
        device = "cuda" if experiment.resources.gpus_per_actor else "cpu"
        algorithm = build_algorithm(experiment, dataset)
        self.worker = Worker(algorithm, dataset, Partition.from_arrays(partition), experiment.seed, device)
        self.rank, self.workers = rank, workers

    def ready(self) -> int:
        return self.rank

    def run(self, orders: list[Order], committed: int, *downs: Tree) -> list[Answer]:
        return self.worker.run(orders, list(downs), committed)

    def measure(self, order: Order, plans: Sequence[Plan], down: Tree) -> list[float]:
        return self.worker.measure(order, down, plans)

    def save_states(self, folder: Path, round: int) -> None:
        self.worker.save_states(folder, round, f"states-{self.rank:04d}")

    def load_states(self, folder: Path | None) -> None:
        self.worker.load_states(folder, lambda clients: owner_of(clients, self.workers) == self.rank)


class RayExecutor:
    """Drives one client actor per bundle of a placement group; replaces those that die."""

    def __init__(self, hosting: Hosting, group: PlacementGroup, bundles: list[int], cpus: float, gpus: float):
        self.hosting, self.group, self.bundles = hosting, group, bundles
        self.cpus, self.gpus = cpus, gpus
        self.workers = len(bundles)
        self.actors = [self._spawn(rank) for rank in range(self.workers)]

    def run(self, orders: list[list[Order]], downs: list[Tree], committed: int) -> list[list[Answer]]:
        broadcast = [ray.put(_to_arrays(down)) for down in downs]
        return self._all(
            [a.run.remote(mine, committed, *broadcast) for a, mine in zip(self.actors, orders, strict=True)]
        )

    def measure(self, order: Order, down: Tree, plans: Sequence[Plan]) -> list[float]:
        return self._all([self.actors[0].measure.remote(order, plans, _to_arrays(down))])[0]

    def save_states(self, folder: Path, round: int) -> None:
        self._all([actor.save_states.remote(folder, round) for actor in self.actors])

    def load_states(self, folder: Path | None) -> None:
        self._all([actor.load_states.remote(folder) for actor in self.actors])

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


def _to_arrays(tree: Tree) -> Tree:
    return tree_map(lambda leaf: np.ascontiguousarray(leaf.numpy()), tree)
