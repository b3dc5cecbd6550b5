"""Transport to client actors on a Ray cluster."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayTaskError

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.platform.actors import sums
from hedgerow.platform.actors.actor_room import actor_resources, actors_that_fit, no_room
from hedgerow.platform.actors.object_states import BlockRows, ObjectMemory
from hedgerow.platform.actors.session import node_resources, on_cluster
from hedgerow.platform.actors.shared_folder import name_of
from hedgerow.platform.actors.small_messages import pack, unpack
from hedgerow.platform.actors.surroundings import Surroundings
from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.common.own_code_errors import own_errors
from hedgerow.platform.common.ray_private import actor_record
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.mapped_arrays import shared_file
from hedgerow.platform.runtime.aggregation import PartialAggregate, pairwise, sum_trees
from hedgerow.platform.runtime.coordinator import worker_arguments
from hedgerow.platform.runtime.process import free_memory, init_process
from hedgerow.platform.runtime.shards import ObjectsLost, WorkShard
from hedgerow.platform.runtime.state_store import MappedMemory, release_maps
from hedgerow.platform.runtime.transport import Answer, arrays_of
from hedgerow.platform.runtime.worker import Worker

SMALL = 100_000
"""Size in bytes below which an argument is sent along with the call."""

LARGE = 8_000_000
"""Size in bytes from which sums are added where they are, if the actors are on several nodes."""

PLACE_SECONDS = 600.0
"""Time within which the first actor has to find a place."""

LOST = (RayActorError, NodeDiedError, ObjectLostError, OutOfMemoryError)
"""Exceptions that Ray raises when an actor, or an answer of it, is lost."""


@dataclass(frozen=True)
class ActorSpec:
    """Experiments that the actors of a run serve. Data and partition are on each node once, see `put_dataset`."""

    experiments: list[Experiment]
    """Several experiments differ only in floats of their algorithm."""
    surroundings: Surroundings
    data: Any
    partition: Any

    @property
    def resources(self) -> Resources:
        return self.experiments[0].resources

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "experiments": [one.model_dump(mode="json") for one in self.experiments]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # An experiment may name classes of the user.
        state["surroundings"].install()
        self.__dict__.update({**state, "experiments": [parse_experiment(values) for values in state["experiments"]]})


def put_dataset(dataset: Dataset) -> Any:
    """Reference to a data set in Ray's object store, for `Dataset.opened`: one copy per node, and none in a process.

    On a Ray of this machine, large arrays that are mapped from files stay there, and only their names are in the object
    store. On a cluster all arrays are in the object store, since other nodes may not have the files.
    """
    values = dict(vars(dataset))
    has_files = not on_cluster() and len(node_resources()) == 1
    for name, value in values.items():
        if has_files and isinstance(value, np.ndarray) and (file := shared_file(value)):
            values[name] = file
    return ray.put(values)


class ClientActor:
    """A worker in a process of its own, on the CPUs and GPUs that Ray reserves for it."""

    worker: Worker | None = None

    def load_run(self, spec: ActorSpec, data: dict[str, Any], partition: dict[str, Any]) -> None:
        """Serve a run, the first or a later one."""
        if spec.resources.gpu and not torch.cuda.is_available():
            raise RuntimeError(
                "PyTorch finds no GPU there, although Ray has one; install the driver that `hedgerow plan` names, or "
                "set resources.device to cpu"
            )
        init_process(spec.resources.threads, spec.resources, spec.experiments[0].engine.precision)
        self.worker = Worker(*worker_arguments(spec.experiments, Dataset.opened(data), Partition(**partition)))

    def unload_run(self) -> None:
        """Release the run that has ended."""
        self.worker = None
        release_maps()
        free_memory()

    @own_errors()
    def call(self, method: str, arguments: bytes, broadcasts: Any, apart: bool, *blocks: np.ndarray) -> Any:
        """Call a method of the worker.

        blocks: those of the rows of all shards, one after the other. Returns the answer; after it, for `run`, the new
        states of each shard and, if `apart`, its sum.
        """
        values = unpack(arguments)
        if broadcasts is None:
            return getattr(self.worker, method)(*values)
        shards, given = values[0], list(blocks)
        for shard in _with_blocks(shards):
            count = len(shard.rows.blocks)
            shard.rows.blocks, given = given[:count], given[count:]
        answer = getattr(self.worker, method)(*values, broadcasts=_received(broadcasts))
        if method != "run":
            return answer
        objects: list[Any] = [block for shard in _with_blocks(shards) for block in shard.rows.new_blocks()]
        for i, partial in enumerate(answer if apart else ()):
            is_large = partial.total is not None and _size(partial.total) >= LARGE
            objects.append(partial.total if is_large else None)
            answer[i] = replace(partial, total=None, is_apart=True) if is_large else partial
        packed = pack(answer) if all(map(_is_small, answer)) else answer
        return (packed, *objects) if objects else packed


@dataclass
class _Call:
    """A call that an actor works on."""

    worker: int
    answer: Any
    shards: list[WorkShard]
    objects: list[Any]
    starts: bool = False


class RayTransport:
    """Transport to client actors.

    One that has died is made again, on another node if its own is lost: Ray would restart it, but say only that it is
    unavailable, and not why. Ray starts those for which there is no room yet as soon as there is. Call `load_run` to
    serve another run with the same actors.

    workers: number of actors. several_nodes: whether they may be on several nodes; large sums are then added there.
    strategies: Ray's scheduling strategy of each actor.
    """

    def __init__(self, spec: ActorSpec, workers: int, several_nodes: bool, strategies: Sequence[Any]):
        self.spec, self.workers, self.several_nodes, self.strategies = spec, workers, several_nodes, strategies
        self.memory = ObjectMemory if several_nodes else MappedMemory
        self.left_out: dict[str, str] = {}
        """Nodes on which actors cannot start, with the reason."""
        self.actors: dict[int, Any] = {}
        self._calls: dict[Any, _Call] = {}
        self._begun, self._is_waited_for = time.monotonic(), True

    def load_run(self, spec: ActorSpec) -> None:
        """Serve another run with the actors that are there: each loads it when it is started next."""
        self.spec, self._calls = spec, {}

    def unload_run(self) -> None:
        """Make the actors release the run that has ended."""
        for actor in self.actors.values():
            actor.unload_run.remote()
        del self.spec

    def start(self, worker: int) -> None:
        if worker not in self.actors:
            self.actors[worker] = self._create(worker)
        answer = self.actors[worker].load_run.remote(self.spec, self.spec.data, self.spec.partition)
        self._calls[answer] = _Call(worker, answer, [], [], starts=True)

    def publish(self, trees: list[Tree]) -> Any:
        """See Transport. In the object store, once, or pickled if storing them would cost more than it saves."""
        arrays = arrays_of(trees)
        sizes = {id(leaf): leaf.nbytes for tree in arrays for leaf in leaves(tree)}
        return pack(arrays) if sum(sizes.values()) < SMALL else ray.put(arrays)

    def call(self, worker: int, method: str, arguments: tuple[Any, ...], shared: Any = None) -> None:
        shards = arguments[0] if shared is not None else []
        own = _with_blocks(shards)
        blocks = [block for shard in own for block in shard.rows.blocks]
        count = 0
        if method == "run":
            count = sum(shard.rows.objects for shard in own) + (len(shards) if self.several_nodes else 0)
        call = self.actors[worker].call.options(num_returns=1 + count)
        result = call.remote(method, pack(arguments), shared, self.several_nodes, *blocks)
        answer, *objects = result if count else [result]
        self._calls[answer] = _Call(worker, answer, shards, objects)

    def wait(self, seconds: float) -> list[Answer]:
        """See Transport. Raises UserError when no actor has found a place for too long."""
        ready, _ = ray.wait(list(self._calls), timeout=seconds)
        if ready:
            ready, _ = ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            self._is_waited_for = False
        elif self._is_waited_for and time.monotonic() > self._begun + PLACE_SECONDS:
            raise no_room(self.spec.resources, 1, node_resources())
        return [self._answer(self._calls.pop(answer)) for answer in ready]

    def _answer(self, call: _Call) -> Answer:
        try:
            value = unpack(ray.get(call.answer))
        except ObjectLostError as error:
            return Answer(call.worker, error=ObjectsLost(first_line(error)))
        except LOST as error:
            failed = isinstance(error, RayActorError) and error.actor_init_failed
            if failed:
                return self._failed_start(call.worker, error)
            # One that Ray cannot reach may still run, and write states.
            ray.kill(self.actors.pop(call.worker))
            return Answer(call.worker, lost=cause_of(error))
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, LOST):
                return Answer(call.worker, error=ObjectsLost(first_line(cause)))
            if call.starts and not isinstance(cause, UserError):
                return self._failed_start(call.worker, error)
            return Answer(call.worker, error=cause if isinstance(cause, Exception) else error)
        if call.objects:
            objects = call.objects
            for i, shard in enumerate(call.shards):
                if isinstance(shard.rows, BlockRows):
                    count = shard.rows.objects
                    value[i] = replace(value[i], objects=objects[:count])
                    objects = objects[count:]
            if self.several_nodes:
                value = [
                    replace(partial, total=total) if partial.is_apart else partial
                    for partial, total in zip(value, objects, strict=True)
                ]
        return Answer(call.worker, value)

    def _failed_start(self, worker: int, error: Exception) -> Answer:
        """Leave out the node on which an actor cannot start, since another one would fail there as well."""
        actor = self.actors.pop(worker)
        node = actor_record(actor).get("Address", {}).get("NodeID", "")
        ray.kill(actor)
        reason = str(error).strip().splitlines()[-1]
        self.left_out[node] = reason
        others = {one["NodeID"]: one for one in ray.nodes() if one["Alive"] and one["NodeID"] not in self.left_out}
        name = next((name_of(one) for one in ray.nodes() if one["NodeID"] == node), node)
        if not node or not actors_that_fit(self.spec.resources, [one["Resources"] for one in others.values()]):
            return Answer(worker, error=UserError(f"no client actor can start, at last on node {name}: {reason}"))
        return Answer(worker, lost=f"it cannot start on node {name}, which is left out of this run: {reason}")

    def sum_up(self, totals: list[Any], scale: float) -> Tree:
        """See Transport. Large sums are added by tasks, where they are."""
        if not totals or not isinstance(totals[0], ray.ObjectRef):
            return sum_trees(totals, scale)
        try:
            result = ray.get(sums.scale.remote(pairwise(totals, sums.add.remote), scale))
        except (*LOST, RayTaskError) as error:
            raise ObjectsLost(first_line(error)) from error
        # Ray's arrays are read-only.
        return tree_map(lambda leaf: torch.from_numpy(leaf.copy()), result)

    def name(self, worker: int) -> str:
        return f"client actor {worker}"

    def kill(self, worker: int) -> None:
        ray.kill(self.actors[worker])

    def close(self) -> None:
        for actor in self.actors.values():
            with suppress(Exception):
                ray.kill(actor)
        self.actors.clear()
        self._calls.clear()

    def _create(self, worker: int) -> Any:
        reserved = actor_resources(self.spec.resources)
        options: dict[str, Any] = {
            "num_cpus": reserved.get("CPU", 0),
            "num_gpus": reserved.get("GPU", 0),
            "memory": reserved.get("memory"),
            "scheduling_strategy": self.strategies[worker],
        }
        if self.left_out:
            options["label_selector"] = {"ray.io/node-id": f"!in({','.join(sorted(self.left_out))})"}
        return ray.remote(ClientActor).options(**options).remote()


def cause_of(error: Exception) -> str:
    """Ray's reason for the loss of an actor, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = (line for line in reversed(lines) if any(word in line for word in ("died", "killed", "memory")))
    return next(telling, lines[0]).rstrip(".")


def _with_blocks(shards: list[WorkShard]) -> list[WorkShard]:
    """Shards whose states are objects of Ray."""
    return [shard for shard in shards if isinstance(shard.rows, BlockRows)]


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
