"""Client actors on Ray, and the executor that drives them."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.factory import build_algorithms
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.dispatch import owner_of
from hedgerow.platform.executors import WorkerLost
from hedgerow.platform.planning import Cost
from hedgerow.platform.process import release, settle
from hedgerow.platform.silence import BEAT, Signs, Silence, Watch
from hedgerow.platform.worker import Answer, Order, Worker

SMALL = 100_000
"""Bytes up to which Ray sends an argument along with the call."""


LOST = (RayActorError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""What Ray raises when an actor is gone, or what it has answered."""


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

    def __init__(
        self,
        hosting: Hosting,
        data: dict[str, Any],
        partition: dict[str, Any],
        rank: int,
        owns: Callable[[np.ndarray], np.ndarray],
    ):
        self.rank, self.owns = rank, owns
        self.host(hosting, data, partition)

    def host(self, hosting: Hosting, data: dict[str, Any], partition: dict[str, Any]) -> None:
        """Serve an experiment, with all its clients at their initial states."""
        resources = Resources.model_validate(hosting.experiments[0]["resources"])
        settle(resources.threads, hosting.import_path, resources.gpu)
        experiments = [parse_experiment(values) for values in hosting.experiments]
        first, dataset = experiments[0], Dataset.from_arrays(data)
        clients, follow = Partition.from_arrays(partition), first.evaluation.follows
        algorithms = build_algorithms(experiments, dataset, clients)
        self.worker = Worker(algorithms, dataset, clients, first.seed, first.resources, follow)

    def forget(self) -> None:
        """Hold neither data nor states until it hosts again."""
        del self.worker
        release()

    def ready(self) -> int:
        return self.rank

    def run(self, orders: list[Order], downs: list[Tree], shares: int) -> list[Answer]:
        return self.worker.run(orders, downs * shares)

    def measure(self, orders: list[Order], downs: list[Tree], steps: int | None) -> Cost:
        return self.worker.measure(orders, downs, steps)

    def save_states(self, expert: int, folder: Path, round: int) -> None:
        self.worker.save_states(folder, expert, round, f"states-{self.rank:04d}")

    def load_states(self, expert: int, folder: Path | None) -> None:
        self.worker.load_states(folder, expert, self.owns)


class RayExecutor:
    """Drives client actors in the bundles of a placement group; replaces those that die or are silent for too long.

    bundles: that of each actor. signs: where notices of silent actors go, and signs of life of the process that waits
    for them. workers: shares of the work; None: one for each actor. Where they are more, share i is
    carried out by actor i modulo their number, with the same bits.
    """

    def __init__(
        self, hosting: Hosting, group: PlacementGroup, bundles: list[int], signs: Signs, workers: int | None = None
    ):
        self.hosting, self.group, self.bundles, self.signs = hosting, group, bundles, signs
        self.workers = workers or len(bundles)
        self.silence = Silence(self.resources)
        self.actors = [self._spawn(rank) for rank in range(len(bundles))]

    @property
    def resources(self) -> Resources:
        """Those of the experiment."""
        return Resources.model_validate(self.hosting.experiments[0]["resources"])

    def run(self, orders: list[list[Order]], downs: list[Tree]) -> list[list[Answer]]:
        broadcast, n = _broadcast(downs), len(self.actors)
        calls = {}
        for rank, actor in enumerate(self.actors):
            shares = orders[rank::n]
            calls[rank] = actor.run.remote([order for mine in shares for order in mine], broadcast, len(shares))
        answers: list[list[Answer]] = [[] for _ in orders]
        for rank, together in enumerate(self._all(calls)):
            parts = iter(together)
            answers[rank::n] = [[next(parts) for _ in mine] for mine in orders[rank::n]]
        return answers

    def measure(self, orders: list[list[Order]], downs: list[Tree], steps: int | None) -> Cost:
        broadcast, n = _broadcast(downs), len(self.actors)
        largest = [max(orders[rank::n], key=lambda mine: len(mine[0].clients)) for rank in range(n)]
        # All at once, as in a round: they share caches and memory. Each with its own clients, who may have states.
        working = {rank: mine for rank, mine in enumerate(largest) if len(mine[0].clients)}
        costs = self._all(
            {rank: self.actors[rank].measure.remote(mine, broadcast, steps) for rank, mine in working.items()}
        )
        return Cost(*(max(values) for values in zip(*map(astuple, costs), strict=True)))

    def save_states(self, expert: int, folder: Path, round: int) -> None:
        self._all(self._each("save_states", expert, folder, round))

    def load_states(self, expert: int, folder: Path | None) -> None:
        self._all(self._each("load_states", expert, folder))

    def host(self, hosting: Hosting) -> None:
        """Let the same processes serve another experiment on the same resources. A dead one is replaced."""
        self.hosting = hosting
        self.silence = Silence(self.resources)
        with suppress(WorkerLost):
            self._all(self._each("host", hosting, hosting.data, hosting.partition))

    def forget(self) -> list[Any]:
        """Let the actors hold nothing of an experiment that has ended. Returns them, when they do not."""
        calls = self._each("forget")
        self._wait(calls)
        for call in calls.values():
            # A dead one is replaced when there is something to host.
            with suppress(*LOST):
                ray.get(call)
        return self.actors

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)

    def _each(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Calls of a method of all actors, by rank."""
        return {rank: getattr(actor, method).remote(*arguments) for rank, actor in enumerate(self.actors)}

    def _all(self, calls: dict[int, Any]) -> list[Any]:
        """Wait for calls to actors, by rank. Lost actors are replaced; then raises WorkerLost."""
        answers: list[Any] = []
        lost: RayError | None = None
        silent = self._wait(calls)
        for call in calls.values():
            try:
                answers.append(ray.get(call))
            except LOST as error:
                end_if_broken(error)
                lost = error
            except RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise error.cause from None
                raise
        if lost is not None:
            self._replace_dead()
            reason = f"{', '.join(silent)} silent for too long (resources.actor_timeout)" if silent else str(lost)
            raise WorkerLost(reason) from lost
        return answers

    def _wait(self, calls: dict[int, Any]) -> list[str]:
        """Wait until calls have ended. Actors that are silent for too long are killed; returns who they are."""
        self.signs.alive()
        begun = time.monotonic()
        watches = {rank: Watch(f"client actor {rank}", self.actors[rank], self.silence) for rank in calls}
        while pending := ray.wait(list(calls.values()), num_returns=len(calls), timeout=BEAT)[1]:
            self.signs.alive()
            for rank, call in calls.items():
                if call in pending:
                    watches[rank].look(self.signs.notice)
        if not any(watch.noticed or watch.killed for watch in watches.values()):
            self.silence.ended(time.monotonic() - begun)
        return [watch.who for watch in watches.values() if watch.killed]

    def _replace_dead(self) -> None:
        calls = self._each("ready")
        self._wait(calls)
        for rank, call in calls.items():
            try:
                ray.get(call)
            except LOST:
                self.actors[rank] = self._spawn(rank)

    def _spawn(self, rank: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundles[rank])
        h = self.hosting
        resources = h.experiments[0]["resources"]
        cpus, gpus = resources["cpus_per_actor"], resources["gpus_per_actor"]
        actor = ray.remote(ClientActor).options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=strategy)
        owns = partial(_owns, rank=rank, actors=len(self.bundles), workers=self.workers)
        return actor.remote(h, h.data, h.partition, rank, owns)


def _owns(clients: np.ndarray, rank: int, actors: int, workers: int) -> np.ndarray:
    """Which of the clients (ids) live on the actor of that rank."""
    return owner_of(clients, workers) % actors == rank


def end_if_broken(error: RayError) -> None:
    """Raise RuntimeError for an actor that did not die but could not even begin: another one could not either."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        raise RuntimeError(f"a process could not start: {str(error).strip().splitlines()[-1]}") from error


def _broadcast(downs: list[Tree]) -> Any:
    """Trees for all actors: once in the object store, or, where that would cost more than it saves, as they are."""
    arrays = [tree_map(lambda leaf: np.asarray(leaf.numpy(), order="C"), down) for down in downs]
    return arrays if sum(leaf.nbytes for down in arrays for leaf in leaves(down)) < SMALL else ray.put(arrays)
