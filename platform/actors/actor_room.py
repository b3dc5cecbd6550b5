"""Room for client actors on the nodes of a cluster or on this machine, from the resources of the nodes."""

import os
from collections.abc import Mapping, Sequence

from joblib import cpu_count

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.ray_private import system_memory
from hedgerow.platform.config.resources import Resources

STORE_SHARE, STORE_MOST = 0.3, 200e9
"""Default fraction of a node's memory that Ray takes for its object store, and the maximum in bytes."""


def actors_that_fit(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> int:
    """Number of client actors that fit on the nodes (their Ray resources)."""
    return sum(_room(resources, node) for node in nodes)


def _room(resources: Resources, node: Mapping[str, float]) -> int:
    """Number of client actors that fit on one node. A fraction of a GPU is on a single GPU."""
    rooms = []
    if resources.cpus_per_actor:
        rooms.append(int(node.get("CPU", 0) / resources.cpus_per_actor + 1e-6))
    share, memory = resources.reserved_gpus, reserved_memory(resources)
    if share:
        rooms.append(int(node.get("GPU", 0)) * int(1 / share + 1e-6))
    if memory:
        rooms.append(int(node.get("memory", 0) / memory))
    return min(rooms)


def reserved_memory(resources: Resources) -> int:
    """Bytes of node memory that each client actor reserves; 0 on a GPU, where `memory_mb` is memory of the GPU."""
    return 0 if resources.gpu else int(1e6 * (resources.memory_mb or 0))


def actor_resources(resources: Resources) -> dict[str, float]:
    """Resources that a client actor reserves, by Ray's names."""
    amounts = {
        "CPU": resources.cpus_per_actor,
        "GPU": resources.reserved_gpus,
        "memory": reserved_memory(resources),
    }
    return {kind: amount for kind, amount in amounts.items() if amount}


def choose_actors(
    resources: Resources, cohort: int, nodes: Sequence[Mapping[str, float]], names: Sequence[str] = ()
) -> int:
    """Number of client actors: as the file sets it, or as many as fit, at most one per client of a round.

    nodes: the resources of each node. names: the names of the nodes. Raises UserError when they cannot hold that many.
    """
    room = actors_that_fit(resources, nodes)
    number = max(1, min(room, cohort)) if resources.actors == "auto" else resources.actors
    if number > room:
        raise no_room(resources, number, nodes, names)
    return number


def no_room(
    resources: Resources, number: int, nodes: Sequence[Mapping[str, float]], names: Sequence[str] = ()
) -> UserError:
    """Error for a number of client actors that do not fit on the nodes."""
    names = names or [f"node {place}" for place in range(1, len(nodes) + 1)]
    cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    memory = reserved_memory(resources)
    size = f"{resources.cpus_per_actor:g} CPU and {resources.reserved_gpus:g} GPU{' each' * (number > 1)}"
    return UserError(
        f"resources: {number} client actor{'s' * (number > 1)} of {size}"
        f"{f' with {memory / 1e9:.3g} GB' if memory else ''} cannot be placed "
        f"on this cluster, which has {cpus:g} CPUs and {gpus:g} GPUs, room for {actors_that_fit(resources, nodes)}: "
        f"{_missing(resources, number, nodes, names)}; lower resources.actors, "
        f"{'memory_mb, ' if memory else ''}cpus_per_actor or gpus_per_actor"
        f"{', or set resources.device to cpu' * (resources.gpus_per_actor == 'auto' and resources.gpu > 0)}"
    )


def _missing(resources: Resources, wanted: int, nodes: Sequence[Mapping[str, float]], names: Sequence[str]) -> str:
    """Clause that names the missing resources for `wanted` client actors."""
    amounts = {"cpus_per_actor": resources.cpus_per_actor, "gpus_per_actor": resources.reserved_gpus}
    missing = []
    for kind, key in zip(("CPUs", "GPUs"), amounts, strict=True):
        alone = dict.fromkeys(amounts, 0.0) | {key: amounts[key], "memory_mb": None}
        if alone[key] and actors_that_fit(resources.model_copy(update=alone), nodes) < wanted:
            missing.append(kind)
    parts = [f"not enough {' and '.join(missing)}"] if missing else []
    if reserved_memory(resources):
        free = resources.model_copy(update={"memory_mb": None})
        full = [name for name, node in zip(names, nodes, strict=True) if _room(resources, node) < _room(free, node)]
        if full:
            parts.append(f"not enough memory on {', '.join(full[:4])}{' and others' * (len(full) > 4)}")
    return " and ".join(parts) or "not enough CPUs on the nodes that have GPUs"


def memory_of(total: float) -> dict[str, float]:
    """Split of a node's memory (bytes): the part that processes may reserve, and the object store."""
    store = min(STORE_SHARE * total, STORE_MOST)
    return {"memory": total - store, "object_store_memory": store}


def mig_slices() -> int | None:
    """Number of MIG slices in CUDA_VISIBLE_DEVICES; None without any. Ray by itself counts GPUs, not slices."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return len(names) if all(name.startswith("MIG-") for name in names) else None


def local_gpus() -> int:
    """Number of GPUs of this machine that PyTorch can use, or of their MIG slices."""
    # Commands that only talk to a cluster need no torch, whose import takes a second.
    import torch

    return (mig_slices() or torch.cuda.device_count()) if torch.cuda.is_available() else 0


def named_cluster(address: str | None) -> str | None:
    """Cluster that the user names, by the option or by Ray's own variable; None: Ray is started on this machine."""
    named = address or os.environ.get("RAY_ADDRESS")
    return None if named == "local" else named or None


def local_resources() -> dict[str, float]:
    """Resources for client actors on this machine, as Ray counts them."""
    return {"CPU": float(cpu_count()), **memory_of(system_memory())}
