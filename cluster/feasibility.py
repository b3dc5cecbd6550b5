"""Placement of client actors on nodes, and checks of the memory that they are known to need."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hedgerow.algorithms.core.pytree import leaves
from hedgerow.algorithms.core.task import Task
from hedgerow.cluster.nodes import Node
from hedgerow.platform.actors.actor_room import actors_that_fit, reserved_memory
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import gigabytes
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.mapped_arrays import shared_file

PROCESS = 0.6e9
"""Bytes of a client actor's process on a CPU, with torch imported (docs/performance.md, design)."""


class MemoryEstimate(NamedTuple):
    """Memory in bytes that a run is known to need. The memory of training is unknown, except as `memory_mb`."""

    actor: float
    """Bytes of a client actor, at least `memory_mb`."""
    store: float
    """Bytes in each node's object store: data set, partition, and the broadcast model."""


def place(resources: Resources, actors: int, nodes: Sequence[Node]) -> list[int]:
    """Number of actors on each node. The nodes must have room for all; Ray chooses among equivalent placements."""
    room = [actors_that_fit(resources, [node.resources]) for node in nodes]
    counts = [0] * len(nodes)
    by_room = sorted(range(len(nodes)), key=lambda index: -room[index])
    if resources.placement == "pack":
        for index in by_room:
            counts[index] = min(room[index], actors - sum(counts))
        return counts
    while sum(counts) < actors:
        for index in by_room:
            counts[index] += counts[index] < room[index] and sum(counts) < actors
    return counts


def estimate_memory(
    experiment: Experiment, task: Task, dataset: Dataset, partition: Partition, nodes: int
) -> MemoryEstimate:
    """Estimate the memory that an experiment is known to need."""
    values = [*vars(dataset).values(), *vars(partition).values()]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    data = [array for array in arrays if nodes > 1 or shared_file(array) is None]
    model = sum(leaf.nbytes for leaf in leaves(task.init()))
    actor = max(PROCESS, reserved_memory(experiment.resources))
    return MemoryEstimate(actor, sum(x.nbytes for x in data) + model)


def check_memory(nodes: Sequence[Node], placed: Sequence[int], needed: MemoryEstimate) -> None:
    """Raises UserError, with the node and the shortage, if the placement needs more memory than the nodes have."""
    for node, actors in zip(nodes, placed, strict=True):
        if actors and actors * needed.actor > node.memory:
            raise UserError(
                f"resources: not enough memory on {node.name}: {actors} client actors need "
                f"{gigabytes(actors * needed.actor)} at least, but {gigabytes(node.memory)} are available "
                "outside the object store; lower resources.actors or memory_mb, or raise cpus_per_actor"
            )
        if actors and needed.store > node.store:
            raise UserError(
                f"resources: not enough object-store memory on {node.name}: data, partition and model need "
                f"{gigabytes(needed.store)}, but it has {gigabytes(node.store)}; start Ray there with a larger "
                "--object-store-memory"
            )
