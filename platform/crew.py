"""The processes of a run on Ray, which the next run of the same command goes on with."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

from hedgerow.platform.ray_health import gcs_answers

if TYPE_CHECKING:
    from hedgerow.platform.ray_executor import RayExecutor

Nodes = dict[str, dict[str, float]]
"""The resources of nodes, by their ids."""


@dataclass
class Crew:
    """A coordinator and its client actors, with the places that are reserved for them.

    Processes take seconds to start, most of it to import torch. purpose: what they can serve; equal where they can
    serve the same. bundles: what is reserved. rested: the client actors, once they and the coordinator hold nothing of
    the run that has ended; the coordinator may have replaced some.
    """

    purpose: Any
    group: PlacementGroup
    bundles: list[dict[str, float]]
    reservation: ExitStack
    executor: "RayExecutor"
    coordinator: Any
    rested: Any = None

    def hosts(self) -> dict[int, str]:
        """The node of each bundle that has one."""
        return placement_group_table(self.group)["bundles_to_node_id"]

    def given_back(self, free: Nodes) -> Nodes:
        """What will be free on nodes once this has ended."""
        after = {node: dict(resources) for node, resources in free.items()}
        for index, node in self.hosts().items():
            if node in after:
                for kind, amount in self.bundles[index].items():
                    after[node][kind] = after[node].get(kind, 0.0) + amount
        return after

    def forget(self) -> None:
        """Hold nothing of the run that has ended: there may not be room for two data sets."""
        self.rested = self.coordinator.forget.remote()
        del self.executor.hosting

    def close(self) -> None:
        """End the processes and give back their places."""
        if not gcs_answers():
            # They end with their Ray. To remove a placement group would take for ever.
            return
        ray.kill(self.coordinator)
        self.executor.close()
        self.reservation.close()


_lock = threading.Lock()
_resting: list[Crew] = []
_keeping = False


@contextmanager
def keeping() -> Iterator[None]:
    """Meanwhile crews that come to the end of their run are kept for others, until they are let go."""
    global _keeping
    before, _keeping = _keeping, True
    try:
        yield
    finally:
        _keeping = before


def rest(crew: Crew) -> None:
    """Keep a crew whose run has ended well, where crews are kept."""
    if not _keeping:
        crew.close()
        return
    crew.forget()
    with _lock:
        _resting.append(crew)


def take(purpose: Any) -> Crew | None:
    """One that serves the purpose; where there is none all are let go, since their places may be needed."""
    with _lock:
        for crew in _resting:
            if crew.purpose == purpose:
                _resting.remove(crew)
                return crew
    let_go()
    return None


def all_given_back(free: Nodes) -> Nodes:
    """What will be free on nodes once all crews that rest are let go."""
    for crew in list(_resting):
        free = crew.given_back(free)
    return free


def let_go() -> None:
    """End all crews that rest."""
    with _lock:
        ended = list(_resting)
        _resting.clear()
    if ray.is_initialized():
        for crew in ended:
            crew.close()
