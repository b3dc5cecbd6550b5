"""Room for runs and trials on the nodes of a cluster."""

import time

from ray.autoscaler.sdk import request_resources

from hedgerow.platform.actors.actor_room import actor_resources, actors_that_fit, choose_actors, no_room
from hedgerow.platform.actors.session import node_resources, on_cluster, ray_session
from hedgerow.platform.common.errors import say
from hedgerow.platform.config.resources import Resources

WAIT_SECONDS, REMINDER_SECONDS = 600.0, 60.0
"""Time to wait for nodes of a cluster, and between two messages about it."""


def wait_for_room(resources: Resources, actors: int) -> None:
    """Wait until the cluster has nodes with room for this number of client actors; a cluster that scales starts them.

    The caller checks whether there is room then. Returns at once for a Ray of this machine, which does not grow.
    """
    begun = said = time.monotonic()
    if not on_cluster() or actors_that_fit(resources, node_resources()) >= actors:
        return
    what = f"nodes with room for {actors} client actor{'s' * (actors != 1)}"
    say(f"waiting for {what}, up to {WAIT_SECONDS:g} s")
    request_resources(bundles=[actor_resources(resources)] * actors)
    try:
        while (room := actors_that_fit(resources, node_resources())) < actors:
            now = time.monotonic()
            if now > begun + WAIT_SECONDS:
                return
            if now > said + REMINDER_SECONDS:
                said = now
                say(f"still waiting for {what}: room for {room} after {now - begun:.0f} s")
            time.sleep(1.0)
        say(f"the nodes are there after {time.monotonic() - begun:.0f} s")
    finally:
        request_resources(bundles=[])


def gpus_of_nodes(resources: Resources, address: str | None) -> float:
    """Number of GPUs of the nodes of the Ray at `address`, once there is room for a client actor.

    Raises UserError if there is none.
    """
    with ray_session(address):
        wait_for_room(resources, 1)
        nodes = node_resources()
    if not actors_that_fit(resources, nodes):
        raise no_room(resources, 1, nodes)
    return sum(node.get("GPU", 0.0) for node in nodes)


def trials_that_fit(resources: Resources, actors: int) -> int:
    """Number of trials with this number of client actors each that fit on the cluster at once.

    Raises UserError when none fits.
    """
    choose_actors(resources.model_copy(update={"actors": actors}), actors, node_resources())
    return actors_that_fit(resources, node_resources()) // actors


def cpus_per_trial(trials: int) -> float:
    """Number of CPUs of a trial when this number of trials fills the cluster; at most the CPUs of one node."""
    cpus = [node.get("CPU", 0.0) for node in node_resources()]
    return min(int(1e4 * sum(cpus) / trials) / 1e4, max(cpus))
