"""Room for client actors on the nodes of a cluster or on this machine, from the resources of the nodes."""

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

from joblib import cpu_count

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.ray_private import system_memory
from hedgerow.platform.config.resources import Kind, Resources

STORE_SHARE, STORE_MOST = 0.3, 200e9
"""Default fraction of a node's memory that Ray takes for its object store, and the maximum in bytes."""


def actors_that_fit(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> int:
    """Number of client actors that fit on the nodes (their Ray resources)."""
    return sum(room_by_kind(resources, nodes).values())


def room_by_kind(resources: Resources, nodes: Sequence[Mapping[str, float]]) -> dict[Kind, int]:
    """Number of client actors of each kind that fit on the nodes (their Ray resources)."""
    own, each = {kind: resources.of_kind(kind) for kind in resources.kinds}, resources.actors_per_node
    room = dict.fromkeys(own, 0)
    for node in nodes:
        kind = kind_on(resources, node)
        fits = _room(own[kind], node)
        room[kind] += each * (fits >= each) if each else fits
    return room


def kind_on(resources: Resources, node: Mapping[str, float]) -> Kind:
    """Kind of the client actors on a node: one with GPUs hosts only actors of kind gpu, if there are two kinds.

    node: its Ray resources; those that are all in use are 0, and those that it does not have are missing.
    """
    if len(resources.kinds) == 1:
        return resources.kinds[0]
    return "gpu" if "GPU" in node else "cpu"


def actors_to_start(
    shares: Sequence[Kind], room: Mapping[Kind, int], least: int, most: int | None = None
) -> list[Kind]:
    """Kinds of the client actors to start, those of a kind next to each other.

    At most one per share of the kind, and at least one of each kind. They are as many as fit, but at least `least`, and
    at most `most` (None: no limit).
    """
    most_each = Counter(shares)
    counts = dict.fromkeys(most_each, 1)
    for limits, total in ((room, len(shares) if most is None else most), (most_each, least)):
        for kind in counts:
            more = min(limits.get(kind, 0), most_each[kind]) - counts[kind]
            counts[kind] += max(0, min(more, total - sum(counts.values())))
    return [kind for kind, count in counts.items() for _ in range(count)]


def needed_actors(resources: Resources, actors: int, room: Mapping[Kind, int]) -> list[Kind]:
    """Kinds of a number of client actors: as many with GPUs as fit, at least one, unless the file lists the kinds."""
    if isinstance(resources.mixed, list):
        return actors_to_start(resources.mixed, room, actors, actors)
    first, last = resources.kinds[0], resources.kinds[-1]
    with_first = max(1, min(room[first], actors))
    return [first] * with_first + [last] * (actors - with_first)


def _room(resources: Resources, node: Mapping[str, float]) -> int:
    """Number of client actors of one kind that fit on one node. A fraction of a GPU is on a single GPU."""
    rooms = []
    if resources.cpus_per_actor:
        rooms.append(int(node.get("CPU", 0) / resources.cpus_per_actor + 1e-6))
    share, memory = resources.gpus_per_actor, reserved_memory(resources)
    if share:
        rooms.append(int(node.get("GPU", 0)) * shares_of_a_gpu(share))
    if memory:
        rooms.append(int(node.get("memory", 0) / memory))
    return min(rooms)


def shares_of_a_gpu(share: float) -> int:
    """Number of actors with this fraction of a GPU that fit on one GPU."""
    return int(1 / share + 1e-6)


def reserved_memory(resources: Resources) -> int:
    """Bytes of node memory that each client actor reserves; 0 on a GPU, where `memory_mb` is memory of the GPU."""
    return 0 if resources.gpu else int(1e6 * (resources.memory_mb or 0))


def choose_actors(
    resources: Resources, cohort: int, nodes: Sequence[Mapping[str, float]], names: Sequence[str] = ()
) -> list[Kind]:
    """Kind of each client actor: as many as the file sets, or as many as fit, at most one per client of a round.

    nodes: the resources of each node. names: the names of the nodes. Raises UserError when they cannot hold that many,
    or `min_actors` if the file sets it.
    """
    room = room_by_kind(resources, nodes)
    number = max(1, min(sum(room.values()), cohort)) if resources.actors == "auto" else resources.actors
    least = needed_actors(resources, resources.min_actors or number, room)
    for kind, count in Counter(least).items():
        if count > room[kind]:
            raise _no_room(resources, kind, count, room[kind], nodes, names)
    return resources.mixed if isinstance(resources.mixed, list) else needed_actors(resources, number, room)


def _no_room(
    resources: Resources,
    kind: Kind,
    number: int,
    room: int,
    nodes: Sequence[Mapping[str, float]],
    names: Sequence[str],
) -> UserError:
    """Error for a number of client actors of a kind. room: number of them that fit."""
    names = names or [f"node {place}" for place in range(1, len(nodes) + 1)]
    chosen = [(node, name) for node, name in zip(nodes, names, strict=True) if kind_on(resources, node) == kind]
    nodes, names = [node for node, _ in chosen], [name for _, name in chosen]
    if not nodes and len(resources.kinds) > 1:
        absent = {
            "gpu": "resources.mixed: at least one client actor needs a GPU, but no node has one; add such a node, or "
            "set gpus_per_actor to 0 and remove `mixed`",
            "cpu": f"resources.mixed: {number} of the client actors do not fit on GPUs, and every node has GPUs; add "
            "a node without GPUs, or lower resources.actors",
        }
        return UserError(absent[kind])
    cpus, gpus = (sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU"))
    where = "on this cluster, which has"
    if len(resources.kinds) > 1:
        where = f"on the nodes with{'out' * (kind == 'cpu')} GPUs, which have"
    own, key = resources.of_kind(kind), "min_actors" if resources.min_actors else "actors"
    memory, is_cpu_only = reserved_memory(own), len(resources.kinds) > 1 and kind == "cpu"
    size = f"{own.cpus_per_actor:g} CPU and {own.gpus_per_actor:g} GPU{' each' * (number > 1)}"
    return UserError(
        f"resources: {number} client actor{'s' * (number > 1)} of {size}"
        f"{f' with {memory / 1e9:.3g} GB' if memory else ''} cannot be placed "
        f"{where} {cpus:g} CPUs and {gpus:g} GPUs, room for {room}: "
        f"{_missing(own, number, nodes, names)}; lower resources.{key}, "
        f"{'memory_mb, ' if memory else ''}cpus_per_actor{'' if is_cpu_only else ' or gpus_per_actor'}"
    )


def least_actors(resources: Resources) -> int:
    """Number of client actors without which a run does not start."""
    return resources.min_actors or (1 if resources.actors == "auto" else resources.actors)


def _missing(resources: Resources, wanted: int, nodes: Sequence[Mapping[str, float]], names: Sequence[str]) -> str:
    """Clause that names the missing resources for `wanted` client actors."""
    keys = {"CPUs": "cpus_per_actor", "GPUs": "gpus_per_actor"}
    missing = []
    for kind, key in keys.items():
        alone = dict.fromkeys(keys.values(), 0.0) | {key: getattr(resources, key)}
        alone |= {"memory_mb": None, "actors_per_node": None}
        if alone[key] and actors_that_fit(resources.model_copy(update=alone), nodes) < wanted:
            missing.append(kind)
    parts = [f"not enough {' and '.join(missing)}"] if missing else []
    if reserved_memory(resources):
        free = resources.model_copy(update={"memory_mb": None})
        full = [name for name, node in zip(names, nodes, strict=True) if _room(resources, node) < _room(free, node)]
        if full:
            parts.append(f"not enough memory on {', '.join(full[:4])}{' and others' * (len(full) > 4)}")
    if not parts and resources.actors_per_node and sum(_room(resources, node) for node in nodes) >= wanted:
        return f"not enough nodes with room for {resources.actors_per_node} client actors (actors_per_node)"
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
    """Number of GPUs of this machine, or of their MIG slices."""
    # Commands that only talk to a cluster need no torch, whose import takes a second.
    import torch

    return mig_slices() or torch.cuda.device_count()


def say_unused_gpus(resources: Resources, gpus: float) -> None:
    """Print one line if the nodes have GPUs that the clients do not use. gpus: number of GPUs of the nodes."""
    if sentence := resources.unused_gpus(gpus):
        say(sentence)


def say(sentence: str) -> None:
    """Print a sentence for the user on standard error."""
    print(f"hedgerow: {sentence}", file=sys.stderr, flush=True)


def local_resources() -> dict[str, float]:
    """Resources for client actors without a GPU, if Ray is started on this machine."""
    return {"CPU": float(cpu_count()), **memory_of(system_memory())}
