"""Placement of client actors on the nodes of a cluster, and the reservation of their resources."""

import math
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from hedgerow.platform.actors.actor_room import actors_that_fit, count_actors, reserved_memory, say, shares_of_a_gpu
from hedgerow.platform.actors.session import node_resources, on_cluster
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Resources

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
    if not seconds or actors_that_fit(resources, node_resources()) >= actors:
        return
    what = f"nodes with room for {actors} client actor{'s' * (actors > 1)}"
    say(f"waiting for {what}, up to {seconds:g} s (resources.wait)")
    group = placement_group(bundles(resources, actors), strategy=strategy(resources))
    try:
        while actors_that_fit(resources, nodes := node_resources()) < actors:
            now = time.monotonic()
            if now > begun + seconds:
                return
            if now > said + REMINDER:
                said = now
                say(f"still waiting for {what}: room for {actors_that_fit(resources, nodes)} after {now - begun:.0f} s")
            group.wait(min(1.0, seconds))
        say(f"the nodes are there after {time.monotonic() - begun:.0f} s")
    finally:
        if ray.is_initialized():
            remove_placement_group(group)


def bundles(resources: Resources, actors: int) -> list[dict[str, float]]:
    """Resources that client actors reserve, by Ray's names: one per actor, or one per node with `actors_per_node`."""
    each = resources.actors_per_node or 1
    return [_bundle(resources, min(each, actors - first)) for first in range(0, actors, each)]


def bundle_of(resources: Resources, rank: int) -> int:
    """Index of a client actor's bundle in `bundles`."""
    return rank // (resources.actors_per_node or 1)


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
    count_actors(resources.model_copy(update={"actors": actors, "min_actors": None}), actors, node_resources())
    return actors_that_fit(resources, node_resources()) // actors


def cpu_share(trials: int) -> float:
    """Number of CPUs per trial when this number of trials fills the cluster; at most the CPUs of one node."""
    cpus = [node.get("CPU", 0.0) for node in node_resources()]
    return min(int(1e4 * sum(cpus) / trials) / 1e4, max(cpus))


def _amounts(resources: Resources, actors: int) -> str:
    """Resources of client actors together."""
    return (
        f"{actors * resources.cpus_per_actor:g} CPUs, {actors * resources.gpus_per_actor:g} GPUs and "
        f"{actors * reserved_memory(resources) / 1e9:.3g} GB"
    )


@contextmanager
def reserved(
    resources: Resources, actors: int, patience: float = PATIENCE, excluded: Collection[str] = ()
) -> Iterator[PlacementGroup]:
    """Placement group with resources for the client actors, released at the end. excluded: ids of nodes not to use.

    Raises UserError when the cluster's resources stay in use for longer than `patience` (seconds).
    """
    wanted = bundles(resources, actors)
    elsewhere = [{"ray.io/node-id": f"!in({','.join(sorted(excluded))})"}] * len(wanted) if excluded else None
    group = placement_group(wanted, strategy=strategy(resources), bundle_label_selector=elsewhere)
    try:
        if not group.wait(min(patience, SILENTLY)):
            say(f"waiting for {_amounts(resources, actors)}, which others use, up to {patience:g} s")
        if not group.wait(max(0.0, patience - SILENTLY)):
            free = ray.available_resources()
            raise UserError(
                f"resources: the cluster is busy: {actors} client actors need {_amounts(resources, actors)}, but after "
                f"{patience:g} s only "
                f"{free.get('CPU', 0):g} CPUs, {free.get('GPU', 0):g} GPUs and {free.get('memory', 0) / 1e9:.3g} GB "
                "are free; wait for other jobs or lower resources.actors"
            )
        yield group
    finally:
        # Without Ray there is nothing to release.
        if ray.is_initialized():
            remove_placement_group(group)
