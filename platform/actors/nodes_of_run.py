"""The nodes that a run may use: not those on which client actors cannot start, nor those that have yet to start one."""

import time
from collections.abc import Callable, Collection
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.platform.actors.actor_room import actors_that_fit, kind_on
from hedgerow.platform.actors.client_actor import ActorSpec, ClientActor, start_failure
from hedgerow.platform.actors.shared_folder import name_of

Nodes = dict[str, dict[str, float]]
"""Resources of each node, by node id."""

TOO_LONG = 600.0
"""Seconds within which a node has to start a client actor."""

NOTICED = 60.0
"""Seconds after which Ray has noticed the loss of a node; the loss of its actors is noticed at once."""


class LostNodes:
    """Reports nodes that were lost while they were in use, each once.

    notify: receives the name and address of each.
    """

    def __init__(self, notify: Callable[[str], None]):
        self.notify = notify
        self._in_use: dict[str, float] = {}

    def use(self, nodes: Collection[str]) -> None:
        """Note that these nodes are in use from now on, and no others."""
        self._in_use = dict.fromkeys(nodes, time.monotonic())

    def look(self, nodes: Collection[str]) -> None:
        """Report nodes that were lost. nodes: those that are in use now."""
        known, now = {node["NodeID"]: node for node in ray.nodes()}, time.monotonic()
        lost = [node for node in self._in_use if node in known and not known[node]["Alive"]]
        recent = {node: last for node, last in self._in_use.items() if node not in lost and last > now - NOTICED}
        self._in_use = recent | dict.fromkeys((node for node in nodes if known.get(node, {}).get("Alive")), now)
        for node in lost:
            self.notify(name_of(known[node]))


class NodesOfRun:
    """The nodes that a run may use.

    A node that joins later is used once a client actor has started there, so that a node with a broken environment does
    not disturb a run. notify: receives a sentence about each node that is left out.
    """

    def __init__(self, notify: Callable[[str], None]):
        self.notify = notify
        self.broken: dict[str, str] = {}
        self._known: set[str] | None = None
        self._starting: dict[str, tuple[Any, Any, float]] = {}
        self._sound: set[str] = set()

    def usable(self, nodes: Nodes) -> Nodes:
        """Nodes that the run may use now: all of the first call, and later ones that have started an actor."""
        if self._known is None:
            self._known = set(nodes)
        return {node: free for node, free in nodes.items() if node in self._known and node not in self.broken}

    def leave_out(self, broken: dict[str, str]) -> None:
        """Do not use these nodes again. broken: why, by node id."""
        names = {node["NodeID"]: name_of(node) for node in ray.nodes()}
        for node, reason in broken.items():
            if node not in self.broken:
                self.notify(f"node {names.get(node, node)} is left out of this run: {reason}")
        self.broken |= broken

    def start_on_new(self, spec: ActorSpec, nodes: Nodes) -> None:
        """Start a client actor on each node that has joined, and look which have started. Does not wait."""
        assert self._known is not None
        # Ray takes a moment to release the resources of an actor that has ended.
        freed = {node for node in self._sound & set(nodes) if actors_that_fit(spec.resources, [nodes[node]])}
        self._known |= freed
        self._sound -= freed
        for node in set(nodes) - self._known - self._sound - self._starting.keys() - self.broken.keys():
            if not actors_that_fit(spec.resources, [nodes[node]]):
                # Too small, or in use by others.
                continue
            where = NodeAffinitySchedulingStrategy(node, soft=False)
            own = spec.of_kind(kind_on(spec.resources, nodes[node]))
            actor = ray.remote(ClientActor).options(**own.reserved, scheduling_strategy=where)
            started: Any = actor.remote(own, own.data, own.partition, 0, _owns_none)
            self._starting[node] = started, started.ready.remote(), time.monotonic()
        for node, (actor, answer, begun) in list(self._starting.items()):
            has_ended, is_late = ray.wait([answer], timeout=0)[0], time.monotonic() > begun + TOO_LONG
            if node in nodes and not has_ended and not is_late:
                continue
            del self._starting[node]
            try:
                if has_ended:
                    ray.get(answer)
                    self._sound.add(node)
                elif is_late and actors_that_fit(spec.resources, [nodes.get(node, {})]):
                    self.leave_out({node: f"no client actor has started there within {TOO_LONG:g} s"})
            except RayActorError as error:
                # A node that is lost meanwhile is not broken.
                if error.actor_init_failed:
                    self.leave_out({node: start_failure(error)})
            except RayError:
                pass
            ray.kill(actor)

    def close(self) -> None:
        """End the actors that are starting."""
        for actor, _, _ in self._starting.values():
            ray.kill(actor)
        self._starting.clear()


def _owns_none(clients: Any) -> Any:
    return clients < 0
