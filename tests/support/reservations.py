"""Placement groups and actors of the session's Ray that earlier tests have left."""

import gc
import os
import signal
import time
import warnings
from contextlib import suppress

import ray
from internals import known_actors
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

PATIENCE = 5.0
"""Seconds for which CPUs may still be on their way back."""


def free_reservations():
    """Remove placement groups and end actors that earlier tests have left, so that no test waits for their CPUs."""
    if not ray.is_initialized() or (all_free() and not placement_groups()):
        return
    gc.collect()
    for name, group in placement_groups().items():
        warnings.warn(f"an earlier test has left a placement group: {group['bundles']}", stacklevel=2)
        remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))
    until = time.monotonic() + PATIENCE
    while not (is_free := all_free()) and time.monotonic() < until:
        time.sleep(0.1)
    if not is_free:
        for actor in known_actors():
            if actor["State"] == "ALIVE":
                warnings.warn(f"an earlier test has left an actor: {actor['ActorClassName']}", stacklevel=2)
                with suppress(ProcessLookupError):
                    os.kill(actor["Pid"], signal.SIGKILL)


def placement_groups() -> dict[str, dict]:
    """Placement groups that exist or wait for resources, by id."""
    return {name: group for name, group in placement_group_table().items() if group["state"] != "REMOVED"}


def all_free() -> bool:
    return free_cpus() == ray.cluster_resources().get("CPU")


def free_cpus() -> float:
    """CPUs of the session's Ray that are not reserved."""
    return ray.available_resources().get("CPU", 0.0)
