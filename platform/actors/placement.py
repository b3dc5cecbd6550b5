"""Which client actors fit on the nodes of a cluster, and their reservation."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hedgerow.platform.actors.session import node_resources
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Resources

PATIENCE = 60.0
"""Seconds to wait for resources that the cluster has but that are in use."""


def actors_that_fit(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> int:
    """How many client actors the nodes (their Ray resources) can hold."""
    rooms, each = [_room(resources, node) for node in nodes], resources.actors_per_node
    return each * sum(room >= each for room in rooms) if each else sum(rooms)


def _room(resources: Resources, node: Mapping[str, float]) -> int:
    """Client actors that one node can hold. A share of a GPU lies on one GPU."""
    rooms = []
    if resources.cpus_per_actor:
        rooms.append(int(node.get("CPU", 0) / resources.cpus_per_actor + 1e-6))
    share, memory = resources.gpus_per_actor, reserved_memory(resources)
    if share >= 1:
        rooms.append(int(node.get("GPU", 0) / share))
    elif share:
        rooms.append(int(node.get("GPU", 0)) * shares_of_a_gpu(share))
    if memory:
        rooms.append(int(node.get("memory", 0) / memory))
    return min(rooms)


def shares_of_a_gpu(share: float) -> int:
    """How many actors with such a share of a GPU fit on one."""
    return int(1 / share + 1e-6)


def reserved_memory(resources: Resources) -> int:
    """Bytes of its node's memory that each client actor reserves; `memory_mb` of one that computes on a GPU is the
    GPU's.
    """
    return 0 if resources.gpu else int(1e6 * (resources.memory_mb or 0))


def count_actors(
    resources: Resources, cohort: int, nodes: Sequence[Mapping[str, float]] | None = None, names: Sequence[str] = ()
) -> int:
    """The number of client actors: the file's, or as many as fit, at most one per client of a round.

    nodes: the resources of each; None: those of the cluster. names: theirs. Raises UserError when they cannot hold
    so many, or `min_actors` where the file has it.
    """
    nodes = node_resources() if nodes is None else nodes
    room = actors_that_fit(resources, nodes)
    wanted = max(1, min(room, cohort)) if resources.actors == "auto" else resources.actors
    least = resources.min_actors or wanted
    if least > room:
        cpus, gpus = (sum(node.get(kind, 0) for node in nodes) for kind in ("CPU", "GPU"))
        names = names or [f"node {number}" for number in range(1, len(nodes) + 1)]
        memory = reserved_memory(resources)
        key = "min_actors" if resources.min_actors else "actors"
        size = f"{resources.cpus_per_actor:g} CPU and {resources.gpus_per_actor:g} GPU each"
        raise UserError(
            f"resources: {least} client actors of {size}{f' with {memory / 1e9:.3g} GB' if memory else ''} do not fit "
            f"on this cluster, which has {cpus:g} CPUs and {gpus:g} GPUs, room for {room}: "
            f"{_lacking(resources, least, nodes, names)}; lower resources.{key}, "
            f"{'memory_mb, ' if memory else ''}cpus_per_actor or gpus_per_actor"
        )
    return wanted


def _lacking(resources: Resources, wanted: int, nodes: Sequence[Mapping[str, float]], names: Sequence[str]) -> str:
    """A clause on what is too little for so many actors."""
    keys = {"CPUs": "cpus_per_actor", "GPUs": "gpus_per_actor"}
    lack = []
    for kind, key in keys.items():
        alone = dict.fromkeys(keys.values(), 0.0) | {key: getattr(resources, key)}
        alone |= {"memory_mb": None, "actors_per_node": None}
        if alone[key] and actors_that_fit(resources.model_copy(update=alone), nodes) < wanted:
            lack.append(kind)
    parts = [f"{' and '.join(lack)} lack"] if lack else []
    if reserved_memory(resources):
        free = resources.model_copy(update={"memory_mb": None})
        full = [name for name, node in zip(names, nodes, strict=True) if _room(resources, node) < _room(free, node)]
        if full:
            parts.append(f"memory lacks on {', '.join(full[:4])}{' and others' * (len(full) > 4)}")
    if not parts and resources.actors_per_node and sum(_room(resources, node) for node in nodes) >= wanted:
        return f"nodes with room for {resources.actors_per_node} (actors_per_node) lack"
    return " and ".join(parts) or "CPUs on the nodes that have GPUs lack"


def bundles(resources: Resources, actors: int) -> list[dict[str, float]]:
    """What client actors reserve, by Ray's names: a bundle for each; with `actors_per_node`, for all of a node."""
    each = resources.actors_per_node or 1
    return [_bundle(resources, min(each, actors - first)) for first in range(0, actors, each)]


def bundle_of(resources: Resources, rank: int) -> int:
    """In which of the `bundles` a client actor is."""
    return rank // (resources.actors_per_node or 1)


def strategy(resources: Resources) -> str:
    """Ray's word for where the bundles go."""
    return "STRICT_SPREAD" if resources.actors_per_node else resources.placement.upper()


def _bundle(resources: Resources, actors: int) -> dict[str, float]:
    share = resources.gpus_per_actor
    gpus = actors * share
    if 0 < share < 1 < gpus:
        gpus = math.ceil(actors / shares_of_a_gpu(share))
    wanted = {"CPU": actors * resources.cpus_per_actor, "GPU": gpus, "memory": actors * reserved_memory(resources)}
    return {kind: amount for kind, amount in wanted.items() if amount}


def trials_that_fit(resources: Resources, actors: int) -> int:
    """How many trials of so many client actors each the cluster holds at once.

    Raises UserError when it holds none.
    """
    count_actors(resources.model_copy(update={"actors": actors, "min_actors": None}), actors)
    return actors_that_fit(resources, node_resources()) // actors


def cpu_share(trials: int) -> float:
    """The CPUs that each of so many trials takes when they fill the cluster; never more than one node has."""
    cpus = [node.get("CPU", 0.0) for node in node_resources()]
    return min(int(1e4 * sum(cpus) / trials) / 1e4, max(cpus))


@contextmanager
def reserved(resources: Resources, actors: int, patience: float = PATIENCE) -> Iterator[PlacementGroup]:
    """A placement group with room for so many client actors, given back at the end.

    Raises UserError when the cluster's resources stay in use for longer than `patience` (seconds).
    """
    group = placement_group(bundles(resources, actors), strategy=strategy(resources))
    try:
        if not group.wait(patience):
            free = ray.available_resources()
            raise UserError(
                f"resources: the cluster is busy: {actors} client actors need "
                f"{actors * resources.cpus_per_actor:g} CPUs, {actors * resources.gpus_per_actor:g} GPUs and "
                f"{actors * reserved_memory(resources) / 1e9:.3g} GB, and after {patience:g} s "
                f"{free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs and {free.get('memory', 0) / 1e9:.3g} GB "
                "are free; wait for other jobs or lower resources.actors"
            )
        yield group
    finally:
        # Without Ray there is nothing to give back.
        if ray.is_initialized():
            remove_placement_group(group)
