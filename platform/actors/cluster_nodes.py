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
        self._alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        self._looked = time.monotonic()

    def look(self) -> None:
        """Report what has changed since the last check."""
        if time.monotonic() < self._looked + LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        for node in ray.nodes():
            if node["Alive"] and node["NodeID"] not in self._alive:
                self._alive.add(node["NodeID"])
                self.notify(f"node {name_of(node)} has joined")
            elif not node["Alive"] and node["NodeID"] in self._alive:
                self._alive.remove(node["NodeID"])
                self.notify(f"node {name_of(node)} was lost; its work runs again on the other nodes")
