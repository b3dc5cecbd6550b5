"""Placement groups of the session's Ray that earlier searches have left."""

import gc
import warnings

import ray
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group


def free_reservations():
    """Remove the placement groups that earlier tests have left, so that no test waits for their CPUs."""
    gc.collect()
    if ray.is_initialized():
        for name, group in placement_group_table().items():
            if group["state"] != "REMOVED":
                warnings.warn(f"an earlier test has left a placement group: {group['bundles']}", stacklevel=2)
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(name))))
