"""Client actors: workers in processes of their own, and the executor that sends them their shares of the work."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import ray
import torch
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from hedgerow.algorithms.core.own_code import Surroundings
from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.platform.actors.shared_data import opened
from hedgerow.platform.actors.silence import BEAT, Signs, Silence, Watch, WatchedActor
from hedgerow.platform.actors.small_messages import pack, unpack
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.resources import Kind, Resources
from hedgerow.platform.data import Partition
from hedgerow.platform.runtime.aggregation import PartialAggregate, pairwise, scaled
from hedgerow.platform.runtime.assignment import hosts_of, owner_of
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.launch import worker_arguments
from hedgerow.platform.runtime.process import free_memory, init_process
from hedgerow.platform.runtime.shards import ChunkTooLarge, WorkerLost
from hedgerow.platform.runtime.worker import Worker

SMALL = 100_000
"""Size in bytes below which an argument is sent along with the call."""

LARGE = 8_000_000
"""Size in bytes from which actors on several nodes add up their sums among themselves."""

LOST = (RayActorError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""Exceptions that Ray raises when an actor, or an answer of it, is lost."""


class BrokenNodesError(Exception):
    """Client actors cannot start on some nodes.

    reasons: first line of the error by node id.
    """

    def __init__(self, reasons: dict[str, str]):
        super().__init__(reasons)
        self.reasons = reasons

    def __str__(self) -> str:
        return f"a process could not start: {next(iter(self.reasons.values()))}"


@dataclass(frozen=True)
class StoredSum:
    """A sum in the object store of the node of an actor."""

    rank: int
    sum: Any


@dataclass(frozen=True)
class ActorSpec:
    """Experiments that the actors of a run serve. Data and partition are on each node once, see `shared_data`."""

    experiments: list[Experiment]
    """Several experiments differ only in floats of their algorithm."""
    surroundings: Surroundings
    data: Any
    partition: Any

    @property
    def resources(self) -> Resources:
        return self.experiments[0].resources

    @property
    def reserved(self) -> dict[str, float]:
        """CPUs and GPUs that Ray reserves for a client actor, as options of the actor."""
        return {"num_cpus": self.resources.cpus_per_actor, "num_gpus": self.resources.gpus_per_actor}

    def of_kind(self, kind: Kind) -> Self:
        """Specification of the client actors of one kind: the same experiments, on their own resources."""
        own = self.resources.of_kind(kind)
        return replace(self, experiments=[one.model_copy(update={"resources": own}) for one in self.experiments])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "experiments": [one.model_dump(mode="json") for one in self.experiments]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # An experiment may name classes of the user.
        state["surroundings"].install()
        self.__dict__.update({**state, "experiments": [parse_experiment(values) for values in state["experiments"]]})


class ClientActor(Worker):
    """A worker in a process of its own, on the CPUs and GPUs that Ray reserves for it."""

    def __init__(
        self,
        spec: ActorSpec,
        data: dict[str, Any],
        partition: dict[str, Any],
        rank: int,
        owns: Callable[[np.ndarray], np.ndarray],
        apart: bool = False,
    ):
        self.rank, self.owns, self.apart = rank, owns, apart
        self.load_run(spec, data, partition)

    def load_run(self, spec: ActorSpec, data: dict[str, Any], partition: dict[str, Any]) -> None:
        """Serve an experiment, with all its clients in their initial states."""
        init_process(spec.resources.threads, resources=spec.resources)
        arguments = worker_arguments(spec.experiments, opened(data), Partition(**partition))
        Worker.__init__(self, *arguments, name=f"states-{self.rank:04d}", owns=self.owns)

    def run(self, *arguments: Any, **broadcasts: Any) -> list[PartialAggregate]:
        """Like Worker.run; large sums stay on this node if the actors are on several nodes."""
        return [
            replace(part, total=self._stored(part.total), client_model_delta=self._stored(part.client_model_delta))
            for part in super().run(*arguments, **broadcasts)
        ]

    def call(self, method: str, arguments: bytes, *moved: Any, **broadcasts: Any) -> Any:
        """Call a method with pickled arguments; small sums are pickled as well. broadcasts: as `_broadcast`."""
        shared = {name: _received(value) for name, value in broadcasts.items()}
        answer = getattr(self, method)(*unpack(arguments), *moved, **shared)
        return pack(answer) if method == "run" and all(map(_is_small, answer)) else answer

    def _stored(self, total: Any) -> Any:
        is_large = self.apart and total is not None and _size(total) >= LARGE
        return StoredSum(self.rank, ray.put(total)) if is_large else total

    def stored(self, method: str, *arguments: Any) -> tuple[Any, int]:
        """Returns the result of a method, and the rank; waiting for the rank does not fetch the result."""
        return getattr(self, method)(*arguments), self.rank

    def add(self, one: Tree, other: Tree) -> Tree:
        """Sum of two sums."""
        return tree_map(np.add, one, other)

    def scale(self, total: Tree, scale: float) -> Tree:
        """A sum times a number, as float32."""
        return tree_map(lambda leaf: scaled(leaf, scale), total)

    def unload_run(self) -> None:
        """Release data and states until the next `load_run`."""
        del self.algorithms, self.samples, self.states
        free_memory()

    def ready(self) -> int:
        return self.rank


class RayExecutor(Executor):
    """Runs exchanges on client actors in the bundles of a placement group.

    Actors that die or stay silent for too long are replaced.

    bundles: index of each actor's bundle. signs: receives notices about silent actors, and signs of life of the process
    that waits for them. kinds: kind of each actor. shares: kind of the actor for each share of the work. If a kind has
    more shares than actors, they are dealt to them in turn, with the same bits.
    """

    def __init__(
        self,
        spec: ActorSpec,
        group: PlacementGroup,
        bundles: list[int],
        signs: Signs,
        kinds: Sequence[Kind],
        shares: Sequence[Kind],
    ):
        super().__init__(spec.experiments, None, len(shares))
        self.spec, self.group, self.bundles, self.signs = spec, group, bundles, signs
        self.kinds, self.shares = list(kinds), list(shares)
        self.silence = Silence(spec.resources)
        # On one node, the coordinator reads the sums from shared memory. One value for all actors, later ones included:
        # their sums are added up in the same way.
        self.apart = len(set(self._hosts().values())) > 1
        self.actors = [self._spawn(rank) for rank in range(len(bundles))]

    def _hosts(self) -> dict[int, str]:
        """Node id of each bundle."""
        return placement_group_table(self.group)["bundles_to_node_id"]

    def __getstate__(self) -> dict[str, Any]:
        # The spec contains the experiments, and restores them after its import path.
        return {name: value for name, value in self.__dict__.items() if name != "experiments"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({**state, "experiments": state["spec"].experiments})

    @property
    def num_workers(self) -> int:
        return len(self.actors)

    @cached_property
    def hosts(self) -> np.ndarray:
        return hosts_of(self.shares, self.kinds)

    def load_run(self, spec: ActorSpec) -> None:
        """Serve another experiment with the same processes, on the same resources. Dead actors are replaced."""
        self.spec, self.silence = spec, Silence(spec.resources)
        self.begin(spec.experiments)
        own = {kind: spec.of_kind(kind) for kind in spec.resources.kinds}
        calls = {
            rank: self._call(rank, "load_run", own[kind], spec.data, spec.partition)
            for rank, kind in enumerate(self.kinds)
        }
        with suppress(WorkerLost):
            self._all(calls)

    def unload_run(self) -> list[Any]:
        """Make the actors release an experiment that has ended. Returns the actors once they have done so."""
        calls = self._each("unload_run")
        self._wait(calls)
        for call in calls.values():
            # Dead actors are replaced by the next `load_run`.
            with suppress(*LOST):
                ray.get(call)
        return self.actors

    def close(self) -> None:
        """Kill the actors."""
        for actor in self.actors:
            ray.kill(actor)

    def _send(
        self, method: str, arguments: dict[int, tuple], broadcasts: list[Tree] | None = None, again: bool = False
    ) -> list[Any]:
        shared = {} if broadcasts is None else {"broadcasts": _broadcast(broadcasts)}

        def call(rank: int) -> Any:
            moved = [one for one in arguments[rank] if isinstance(one, ray.ObjectRef)]
            others = [one for one in arguments[rank] if not isinstance(one, ray.ObjectRef)]
            return self.actors[rank].call.remote(method, pack(others), *moved, **shared)

        return self._all({rank: call(rank) for rank in arguments}, call if again else None)

    def _call(self, worker: int, method: str, *arguments: Any) -> Any:
        return getattr(self.actors[worker], method).remote(*arguments)

    def _results(self, method: str, arguments: dict[int, tuple]) -> dict[int, Any]:
        calls = {
            rank: self.actors[rank].stored.options(num_returns=2).remote(method, *mine)
            for rank, mine in arguments.items()
        }
        # The object store has the result once its actor has ended the call, and outlives the actor.
        self._all({rank: done for rank, (_, done) in calls.items()})
        return {rank: result for rank, (result, _) in calls.items()}

    def _sum_up(self, totals: list[Any], scale: float) -> Tree:
        """Large sums on several nodes are added up in a tree of the actors; the coordinator receives only the result.

        The actor of the first of two sums adds them. Neighbours are on the same node wherever these are filled up.
        """
        if not totals or not isinstance(totals[0], StoredSum):
            return super()._sum_up(totals, scale)

        def add(one: StoredSum, other: StoredSum) -> StoredSum:
            return StoredSum(one.rank, self._call(one.rank, "add", one.sum, other.sum))

        total = pairwise(totals, add)
        (result,) = self._all({total.rank: self._call(total.rank, "scale", total.sum, scale)})
        # Ray's arrays are read-only.
        return tree_map(lambda leaf: torch.from_numpy(leaf.copy()), result)

    def _each(self, method: str, *arguments: Any) -> dict[int, Any]:
        """Call a method of all actors; returns the calls by rank."""
        return {rank: getattr(actor, method).remote(*arguments) for rank, actor in enumerate(self.actors)}

    def _all(self, calls: dict[int, Any], again: Callable[[int], Any] | None = None) -> list[Any]:
        """Wait for calls to actors, by rank. If actors are lost, replaces them and raises WorkerLost.

        again: first repeats the calls to actors that are lost. Raises BrokenNodesError if actors cannot start, and
        ChunkTooLarge as the actors do.
        """
        answers: dict[int, Any] = dict.fromkeys(calls)
        lost: dict[int, RayError] = {}
        too_large: ChunkTooLarge | None = None
        silent = self._wait(calls)
        with suppress(*LOST, RayTaskError):
            return [unpack(answer) for answer in ray.get(list(calls.values()))]
        for rank, call in calls.items():
            try:
                answers[rank] = unpack(ray.get(call))
            except LOST as error:
                lost[rank] = error
            except RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise error.cause from None
                if isinstance(error.cause, ChunkTooLarge):
                    # Raised only once all actors have answered: none of them may still be at work on this round.
                    too_large = error.cause
                    continue
                if not isinstance(error.cause, LOST):
                    raise
                # The actor that should have sent client states.
                lost[rank] = error.cause
        if lost:
            first = next(iter(lost.values()))
            if isinstance(first, RayActorError) and first.actor_init_failed and (broken := self.broken_nodes()):
                raise BrokenNodesError(broken) from first
            self._replace_dead()
            if again is None or silent or not self.restore_states():
                reason = f"{', '.join(silent)} silent for too long (resources.actor_timeout)" if silent else str(first)
                raise WorkerLost(reason) from first
            repeated = {rank: again(rank) for rank in lost}
            answers |= zip(repeated, self._all(repeated), strict=True)
        if too_large is not None:
            raise too_large
        return list(answers.values())

    def broken_nodes(self) -> dict[str, str]:
        """Why client actors cannot start, by node id."""
        calls = self._each("ready")
        self._wait(calls)
        reasons: dict[int, str] = {}
        for rank, call in calls.items():
            try:
                ray.get(call)
            except RayActorError as error:
                if error.actor_init_failed:
                    reasons[rank] = start_failure(error)
            except LOST:
                pass
        nodes = self._hosts() if reasons else {}
        # A bundle that Ray is moving has no node.
        return {node: reason for rank, reason in reasons.items() if (node := nodes[self.bundles[rank]])}

    def _wait(self, calls: dict[int, Any]) -> list[str]:
        """Wait until calls have ended. Kills actors that stay silent for too long, and returns their names."""
        self.signs.alive()
        begun = time.monotonic()
        watches = {rank: Watch(f"client actor {rank}", WatchedActor(self.actors[rank]), self.silence) for rank in calls}
        while pending := ray.wait(list(calls.values()), num_returns=len(calls), timeout=BEAT)[1]:
            self.signs.alive()
            for rank, call in calls.items():
                if call in pending:
                    watches[rank].look(self.signs.notice)
        if not any(watch.noticed or watch.killed for watch in watches.values()):
            self.silence.ended(time.monotonic() - begun)
        return [watch.who for watch in watches.values() if watch.killed]

    def _replace_dead(self) -> None:
        calls, dead = self._each("ready"), []
        self._wait(calls)
        for rank, call in calls.items():
            try:
                ray.get(call)
            except LOST:
                self.actors[rank] = self._spawn(rank)
                dead.append(rank)
        self._replaced(dead)

    def _spawn(self, rank: int) -> Any:
        strategy = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=self.bundles[rank])
        spec = self.spec.of_kind(self.kinds[rank])
        actor = ray.remote(ClientActor).options(**spec.reserved, scheduling_strategy=strategy)
        owns = partial(_owns, rank=rank, hosts=self.hosts)
        return actor.remote(spec, spec.data, spec.partition, rank, owns, self.apart)


def _owns(clients: np.ndarray, rank: int, hosts: np.ndarray) -> np.ndarray:
    """Mask of the clients (ids) whose states are on the actor with this rank. hosts: actor of each share."""
    return hosts[owner_of(clients, len(hosts))] == rank


def end_if_broken(error: RayError) -> None:
    """Raise RuntimeError for an actor that failed to start, since a replacement would fail as well."""
    if isinstance(error, RayActorError) and error.actor_init_failed:
        raise RuntimeError(f"a process could not start: {start_failure(error)}") from error


def start_failure(error: RayActorError) -> str:
    """Why an actor failed to start: the last line of Ray's message."""
    return str(error).strip().splitlines()[-1]


def _broadcast(downs: list[Tree]) -> Any:
    """Trees for all actors: in the object store, once, or pickled if storing them would cost more than it saves."""
    arrays = [tree_map(lambda leaf: np.asarray(leaf.numpy(), order="C"), down) for down in downs]
    return pack(arrays) if sum(map(_size, arrays)) < SMALL else ray.put(arrays)


def _received(broadcasts: Any) -> list[Tree]:
    """Broadcasts in aligned memory: the bits of kernels may depend on it."""
    if not isinstance(broadcasts, bytes):
        return broadcasts
    return [tree_map(lambda leaf: torch.from_numpy(leaf).clone(), tree) for tree in unpack(broadcasts)]


def _size(tree: Tree) -> int:
    """Size of the leaves in bytes."""
    return sum(leaf.nbytes for leaf in leaves(tree))


def _is_small(part: PartialAggregate) -> bool:
    trees = [part.total, part.client_model_delta, *part.stacks]
    return not part.predictions and all(
        tree is None or (isinstance(tree, dict) and _size(tree) <= SMALL) for tree in trees
    )
