"""Placement of client actors on the nodes of a cluster, and the reservation of their resources."""

import math
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hedgerow.platform.actors.actor_room import (
    actors_that_fit,
    choose_actors,
    needed_actors,
    reserved_memory,
    room_by_kind,
    say,
    shares_of_a_gpu,
)
from hedgerow.platform.actors.session import node_resources, on_cluster
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Kind, Resources

PATIENCE = 60.0
"""Seconds to wait for resources that the cluster has but that are in use."""

NODES_WAIT, REMINDER = 600.0, 60.0
"""Seconds to wait for nodes of a cluster by default, and between two messages about it."""

SILENTLY = 10.0
"""Seconds after which it is said that a run waits for resources."""


def waiting(resources: Resources) -> float:
    """Seconds to wait for nodes that a cluster may start."""
    return (NODES_WAIT if on_cluster() else 0.0) if resources.wait == "auto" else resources.wait


def wait_for_nodes(resources: Resources, actors: int) -> None:
    """Wait until the cluster has nodes with room for this number of client actors, at most `resources.wait` seconds.

    A pending placement group makes a cluster that scales start nodes. The caller checks whether there is room then.
    """
    seconds = waiting(resources)
    begun = said = time.monotonic()
    room = room_by_kind(resources, node_resources())
    needed = needed_actors(resources, actors, room)
    if not seconds or _is_enough(room, needed):
        return
    what = f"nodes with room for {_described(resources, Counter(needed))}"
    say(f"waiting for {what}, up to {seconds:g} s (resources.wait)")
    group = placement_group(bundles(resources, needed), strategy=strategy(resources))
    try:
        while not _is_enough(room, needed_actors(resources, actors, room)):
            now = time.monotonic()
            if now > begun + seconds:
                return
            if now > said + REMINDER:
                said = now
                say(f"still waiting for {what}: room for {_described(resources, room)} after {now - begun:.0f} s")
            group.wait(min(1.0, seconds))
            room = room_by_kind(resources, node_resources())
        say(f"the nodes are there after {time.monotonic() - begun:.0f} s")
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def _is_enough(room: Mapping[Kind, int], actors: Sequence[Kind]) -> bool:
    """Whether there is room for these client actors."""
    return all(count <= room[kind] for kind, count in Counter(actors).items())


def _described(resources: Resources, counts: Mapping[Kind, int]) -> str:
    """Numbers of client actors in words, such as "2 client actors on GPUs and 1 on CPUs"."""
    total = sum(counts.values())
    if len(resources.kinds) == 1:
        return f"{total} client actor{'s' * (total != 1)}"
    first, last = (counts.get(kind, 0) for kind in resources.kinds)
    return f"{first} client actor{'s' * (first != 1)} on GPUs and {last} on CPUs"


def bundles(resources: Resources, actors: Sequence[Kind]) -> list[dict[str, float]]:
    """Resources that client actors reserve, by Ray's names: one per actor, or one per node with `actors_per_node`.

    actors: the kind of each, those of a kind next to each other.
    """
    return [_bundle(resources.of_kind(kinds[0]), len(kinds)) for kinds in _bundled(resources, actors)]


def bundle_indices(resources: Resources, actors: Sequence[Kind]) -> list[int]:
    """Index of each client actor's bundle in `bundles`."""
    return [index for index, kinds in enumerate(_bundled(resources, actors)) for _ in kinds]


def _bundled(resources: Resources, actors: Sequence[Kind]) -> list[list[Kind]]:
    """Kinds of the client actors in each bundle. Actors of two kinds do not share one."""
    each = resources.actors_per_node or 1
    return [
        [kind] * min(each, count - first) for kind, count in Counter(actors).items() for first in range(0, count, each)
    ]


def strategy(resources: Resources) -> str:
    """Ray's name for the placement of the bundles."""
    return "STRICT_SPREAD" if resources.actors_per_node else resources.placement.upper()


def _bundle(resources: Resources, actors: int) -> dict[str, float]:
    share = resources.gpus_per_actor
    gpus = actors * share
    if 0 < share < 1 < gpus:
        gpus = math.ceil(actors / shares_of_a_gpu(share))
    amounts = {"CPU": actors * resources.cpus_per_actor, "GPU": gpus, "memory": actors * reserved_memory(resources)}
    return {kind: amount for kind, amount in amounts.items() if amount}


def trials_that_fit(resources: Resources, actors: int) -> int:
    """Number of trials with this number of client actors each that fit on the cluster at once.

    Raises UserError when none fits.
    """
    choose_actors(resources.model_copy(update={"actors": actors, "min_actors": None}), actors, node_resources())
    return actors_that_fit(resources, node_resources()) // actors


def cpu_share(trials: int) -> float:
    """Number of CPUs per trial when this number of trials fills the cluster; at most the CPUs of one node."""
    cpus = [node.get("CPU", 0.0) for node in node_resources()]
    return min(int(1e4 * sum(cpus) / trials) / 1e4, max(cpus))


def _amounts(resources: Resources, actors: Sequence[Kind]) -> str:
    """Resources of client actors together."""
    own = [resources.of_kind(kind) for kind in actors]
    cpus, gpus = sum(one.cpus_per_actor for one in own), sum(one.gpus_per_actor for one in own)
    return f"{cpus:g} CPUs, {gpus:g} GPUs and {sum(map(reserved_memory, own)) / 1e9:.3g} GB"


def _selectors(resources: Resources, actors: Sequence[Kind], excluded: Collection[str]) -> list[dict[str, str]] | None:
    """Labels of the nodes that each bundle may be on, as Ray takes them; None: any node."""
    with_gpus = {node["NodeID"] for node in ray.nodes() if node["Alive"] and "GPU" in node["Resources"]}
    selectors = []
    for kinds in _bundled(resources, actors):
        avoided = {*excluded, *(with_gpus if len(resources.kinds) > 1 and kinds[0] == "cpu" else ())}
        selectors.append({"ray.io/node-id": f"!in({','.join(sorted(avoided))})"} if avoided else {})
    return selectors if any(selectors) else None


@contextmanager
def reserved(
    resources: Resources, actors: Sequence[Kind], patience: float = PATIENCE, excluded: Collection[str] = ()
) -> Iterator[PlacementGroup]:
    """Placement group with resources for the client actors, released at the end.

    actors: the kind of each, those of a kind next to each other. excluded: ids of nodes not to use.

    Raises UserError when the cluster's resources stay in use for longer than `patience` (seconds).
    """
    group = placement_group(
        bundles(resources, actors),
        strategy=strategy(resources),
        bundle_label_selector=_selectors(resources, actors, excluded),
    )
    try:
        if not group.wait(min(patience, SILENTLY)):
            say(f"waiting for {_amounts(resources, actors)}, which others use, up to {patience:g} s")
        if not group.wait(max(0.0, patience - SILENTLY)):
            free = ray.available_resources()
            raise UserError(
                f"resources: the cluster is busy: {len(actors)} client actors need {_amounts(resources, actors)}, "
                f"but after {patience:g} s only "
                f"{free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs and {free.get('memory', 0) / 1e9:.3g} GB "
                "are free; wait for other jobs or lower resources.actors"
            )
        yield group
    finally:
        # Without Ray there is nothing to release.
        if ray.is_initialized():
            remove_placement_group(group)
