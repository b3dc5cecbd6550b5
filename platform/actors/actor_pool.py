"""Processes of a run on Ray: started, and kept warm for the next run of the same command."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from hedgerow.platform.actors.actor_room import actors_to_start
from hedgerow.platform.actors.client_actor import ActorSpec, RayExecutor
from hedgerow.platform.actors.nodes_of_run import Nodes
from hedgerow.platform.actors.placement import PATIENCE, bundle_indices, bundles, reserved, waiting
from hedgerow.platform.actors.ray_health import gcs_answers
from hedgerow.platform.actors.silence import Signs
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Kind

BRIEFLY = 20.0
"""Seconds to wait for resources that others may have taken, if fewer actors are enough. Ray takes up to some seconds to
release those of actors that were ended just before."""


@dataclass
class ActorGroup:
    """A coordinator and its client actors, with their reserved resources.

    Processes take seconds to start, mostly to import torch. purpose: key of the runs that the group can serve; equal
    for groups that can serve the same runs. bundles: reserved resources. unloaded: the client actors, available once
    they and the coordinator have released the run that ended; the coordinator may have replaced some.
    """

    purpose: Any
    placement_group: PlacementGroup
    bundles: list[dict[str, float]]
    reservation: ExitStack
    executor: RayExecutor
    coordinator: Any
    unloaded: Any = None

    def hosts(self) -> dict[int, str]:
        """Node id of each bundle that has a node."""
        return placement_group_table(self.placement_group)["bundles_to_node_id"]

    def freed(self, free: Nodes) -> Nodes:
        """Free resources of the nodes once this group has ended."""
        after = {node: dict(resources) for node, resources in free.items()}
        for index, node in self.hosts().items():
            if node in after:
                for kind, amount in self.bundles[index].items():
                    after[node][kind] = after[node].get(kind, 0.0) + amount
        return after

    def unload_run(self) -> None:
        """Release the run that has ended: there may not be enough memory for two data sets."""
        self.unloaded = self.coordinator.unload_run.remote()
        del self.executor.spec, self.executor.experiments

    def close(self) -> None:
        """End the processes and release their resources."""
        if not gcs_answers():
            # The processes end with their Ray. Removing a placement group would block forever.
            return
        ray.kill(self.coordinator)
        self.executor.close()
        self.reservation.close()


def start_group(
    spec: ActorSpec,
    signs: Signs,
    shares: Sequence[Kind],
    room: Mapping[Kind, int],
    least: int,
    purpose: Any,
    start_coordinator: Callable[[RayExecutor], Any],
    excluded: Collection[str] = (),
) -> ActorGroup:
    """Start as many client actors as fit, at least `least`, and their coordinator. excluded: ids of nodes not to use.

    shares: kind of the actor for each share of the work. room: number of actors of each kind that fit. Raises UserError
    when the cluster's resources stay in use for too long.
    """
    actors, fewest = actors_to_start(shares, room, least), actors_to_start(shares, room, least, least)
    resources = spec.resources
    with ExitStack() as stack:
        try:
            patience = max(PATIENCE, waiting(resources)) if actors == fewest else BRIEFLY
            group = stack.enter_context(reserved(resources, actors, patience, excluded))
        except UserError:
            if actors == fewest:
                raise
            # Other jobs have taken the resources.
            actors = fewest
            group = stack.enter_context(reserved(resources, actors, max(PATIENCE, waiting(resources)), excluded))
        executor = RayExecutor(spec, group, bundle_indices(resources, actors), signs, actors, shares)
        coordinator, sizes = start_coordinator(executor), bundles(resources, actors)
        return ActorGroup(purpose, group, sizes, stack.pop_all(), executor, coordinator)


_lock = threading.Lock()
_idle: list[ActorGroup] = []
_keeps_warm = False


@contextmanager
def keep_warm() -> Iterator[None]:
    """Within this context, groups whose run ends are kept for other runs, until they are shut down."""
    global _keeps_warm
    before, _keeps_warm = _keeps_warm, True
    try:
        yield
    finally:
        _keeps_warm = before


def release(group: ActorGroup) -> None:
    """Keep a group whose run has ended without an error, if groups are kept warm; otherwise close it."""
    if not _keeps_warm:
        group.close()
        return
    group.unload_run()
    with _lock:
        _idle.append(group)


def acquire(purpose: Any) -> ActorGroup | None:
    """Idle group with this purpose. If there is none, closes all idle groups, since their resources may be needed."""
    with _lock:
        for group in _idle:
            if group.purpose == purpose:
                _idle.remove(group)
                return group
    shutdown_idle()
    return None


def freed_by_idle(free: Nodes) -> Nodes:
    """Free resources of the nodes once all idle groups are closed."""
    for group in list(_idle):
        free = group.freed(free)
    return free


def shutdown_idle() -> None:
    """Close all idle groups."""
    with _lock:
        groups = list(_idle)
        _idle.clear()
    if ray.is_initialized():
        for group in groups:
            group.close()
