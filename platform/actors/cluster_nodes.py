"""Reports nodes of a cluster that join or are lost during a run."""

import time
from collections.abc import Callable

import ray

from hedgerow.platform.actors.shared_folder import name_of

LOOK_SECONDS = 1.0
"""Time between two checks of the cluster."""


class ClusterNodes:
    """Nodes of the cluster that the run has seen.

    notify: receives a sentence about each that joins or is lost, once.
    """

    def __init__(self, notify: Callable[[str], None]):
        self.notify = notify
        self._alive = _alive()
        self._looked = time.monotonic()

    def look(self) -> None:
        """Report what has changed since the last check."""
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        before, self._alive = self._alive, _alive()
        for node in self._alive.keys() - before.keys():
            self.notify(f"node {self._alive[node]} has joined")
        for node in before.keys() - self._alive.keys():
            self.notify(f"node {before[node]} was lost; its work runs again on the other nodes")


def _alive() -> dict[str, str]:
    """Names of the nodes that are alive, by their ids."""
    return {node["NodeID"]: name_of(node) for node in ray.nodes() if node["Alive"]}
