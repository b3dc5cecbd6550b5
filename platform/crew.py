"""The processes of a run on Ray, which the next run of the same command goes on with."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table

if TYPE_CHECKING:
    from hedgerow.platform.ray_executor import RayExecutor


@dataclass
class Crew:
    """A coordinator and its client actors, with the places that are reserved for them.

    Processes take seconds to start, most of it to import torch. purpose: what they can serve; equal where they can
    serve the same.
    """

    purpose: Any
    group: PlacementGroup
    reservation: ExitStack
    executor: "RayExecutor"
    coordinator: Any

    def hosts(self) -> dict[int, str]:
        """The node of each bundle that has one."""
        return placement_group_table(self.group)["bundles_to_node_id"]

    def forget(self) -> None:
        """Hold nothing of the run that has ended: there may not be room for two data sets."""
        self.executor.forget()
        self.coordinator.forget.remote()

    def close(self) -> None:
        ray.kill(self.coordinator)
        self.executor.close()
        self.reservation.close()


_lock = threading.Lock()
_resting: list[Crew] = []
_keeping = 0
"""How many `keeping` are open."""


@contextmanager
def keeping() -> Iterator[None]:
    """Meanwhile crews that come to the end of their run are kept for others; at the end they are let go."""
    global _keeping
    with _lock:
        _keeping += 1
    try:
        yield
    finally:
        with _lock:
            _keeping -= 1
            last = not _keeping
        if last:
            let_go()


def rest(crew: Crew) -> None:
    """Keep a crew whose run has ended well, where crews are kept."""
    with _lock:
        if _keeping:
            crew.forget()
            _resting.append(crew)
            return
    crew.close()


def take(purpose: Any) -> Crew | None:
    """One that serves the purpose; where there is none all are let go, since their places may be needed."""
    with _lock:
        for crew in _resting:
            if crew.purpose == purpose:
                _resting.remove(crew)
                return crew
    let_go()
    return None


def let_go() -> None:
    """End all crews that rest."""
    with _lock:
        ended = list(_resting)
        _resting.clear()
    if ray.is_initialized():
        for crew in ended:
            crew.close()
