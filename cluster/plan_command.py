"""Implementation of the command `plan`: a dry run of placement, with actors per node and the memory that is known to be
needed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import ray
import torch

from hedgerow.algorithms.core.pytree import leaves
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.core.torch_private import compute_capabilities
from hedgerow.cluster.nodes import Node, cluster_nodes, local_node, parse_nodes
from hedgerow.platform.actors.actor_room import actors_that_fit, choose_actors, named_cluster, reserved_memory
from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import gigabytes
from hedgerow.platform.common.table import Table
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment, read_file
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.mapped_arrays import shared_file
from hedgerow.platform.runtime.factory import build_algorithms, check
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.searchspaces.spaces.packing import pack_trials
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search

DRIVERS = {"12": 525, "13": 580}
"""Oldest version of the NVIDIA driver for each major version of CUDA [NVIDIA, CUDA Compatibility, table 1]."""

PROCESS = 0.6e9
"""Bytes of a client actor's process on a CPU, with torch imported (docs/performance.md, design)."""


def plan_file(
    file: Path, overrides: Sequence[str], data_root: Path | None, address: str | None, nodes: str | None
) -> CommandOutput:
    """Plan the placement of a run, or of a search if the file has one. Raises UserError."""
    node_list = parse_nodes(nodes) if nodes else None
    search = load_search(file, overrides) if "search" in read_file(file, overrides)[0] else None
    experiment = search.experiment if search else load_experiment(file, overrides)
    dataset, partition = check(experiment, data_root)
    if node_list is not None:
        available = node_list
    elif not named_cluster(address) and not ray.is_initialized():
        available = [local_node()]
    else:
        with ray_session(address):
            available = cluster_nodes()
    return _plan(experiment, dataset, partition, available, search)


def _plan(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    nodes: list[Node],
    search: SearchSpec | None,
) -> CommandOutput:
    has_gpus = any(node.resources.get("GPU") for node in nodes)
    experiment = experiment.with_device(experiment.resources.fixed_device or ("cuda" if has_gpus else "cpu"))
    resources, cohort = experiment.resources, experiment.cohort_size(len(partition))
    if resources.executor == "inline":
        text = f"{experiment.name}: runs inline, in the driver's process, without client actors"
        return CommandOutput({"name": experiment.name, "executor": "inline"}, lambda: click.echo(text))
    if search:
        resources = resources.model_copy(update={"actors": resources.own_actors})
    actors = choose_actors(resources, cohort, [node.resources for node in nodes], [node.name for node in nodes])
    room = actors_that_fit(resources, [node.resources for node in nodes]) // actors
    trials = _at_once(search, room) if search else 1
    task = build_algorithms([experiment], dataset, partition)[0].task
    memory = estimate_memory(experiment, task, dataset, partition, len(nodes))
    placement = place(resources, trials * actors, nodes)
    check_memory(nodes, placement, memory)
    rows = _rows(resources, nodes, placement, memory)
    where = "coordinator: reserves no CPU and runs next to the driver"
    summary = f"{_count(actors, 'client actor')} of {_size(resources)}"
    if search:
        summary = f"room for {room} concurrent trials of {summary}; {trials} run"
        where = "coordinators: reserve no CPU and run next to the driver or in each trial"
    needs = cuda_requirements() if resources.gpu else None
    clients = -(-cohort // actors)
    how = "packed on as few nodes as possible" if resources.placement == "pack" else "spread over the nodes"

    def render() -> None:
        click.echo(f"{experiment.name}: {summary}, {how}; up to {_count(clients, 'client')} per actor and round")
        Table(rows, "Placement").print()
        click.echo(where)
        if needs:
            click.echo(f"GPUs: {needs}")

    document = {
        "name": experiment.name,
        "executor": resources.executor,
        "trials": trials,
        "actors": actors,
        "placement": rows,
        "gpus": needs,
    }
    return CommandOutput(document, render)


class MemoryEstimate(NamedTuple):
    """Memory in bytes that a run is known to need. The memory of training is unknown, except as `memory_mb`."""

    actor: float
    """Bytes of a client actor, at least `memory_mb`."""
    store: float
    """Bytes in each node's object store: data set, partition, and the broadcast model."""


def place(resources: Resources, actors: int, nodes: Sequence[Node]) -> list[int]:
    """Number of actors on each node. The nodes must have room for all; Ray chooses among equivalent placements."""
    room = [actors_that_fit(resources, [node.resources]) for node in nodes]
    counts = [0] * len(nodes)
    by_room = sorted(range(len(nodes)), key=lambda index: -room[index])
    if resources.placement == "pack":
        for index in by_room:
            counts[index] = min(room[index], actors - sum(counts))
        return counts
    while sum(counts) < actors:
        for index in by_room:
            counts[index] += counts[index] < room[index] and sum(counts) < actors
    return counts


def estimate_memory(
    experiment: Experiment, task: Task, dataset: Dataset, partition: Partition, nodes: int
) -> MemoryEstimate:
    """Estimate the memory that an experiment is known to need."""
    values = [*vars(dataset).values(), *vars(partition).values()]
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    data = [array for array in arrays if nodes > 1 or shared_file(array) is None]
    model = sum(leaf.nbytes for leaf in leaves(task.init()))
    actor = max(PROCESS, reserved_memory(experiment.resources))
    return MemoryEstimate(actor, sum(x.nbytes for x in data) + model)


def check_memory(nodes: Sequence[Node], placed: Sequence[int], needed: MemoryEstimate) -> None:
    """Raises UserError, with the node and the shortage, if the placement needs more memory than the nodes have."""
    for node, actors in zip(nodes, placed, strict=True):
        if actors and actors * needed.actor > node.memory:
            raise UserError(
                f"resources: not enough memory on {node.name}: {actors} client actors need "
                f"{gigabytes(actors * needed.actor)} at least, but {gigabytes(node.memory)} are available "
                "outside the object store; lower resources.actors or memory_mb, or raise cpus_per_actor"
            )
        if actors and needed.store > node.store:
            raise UserError(
                f"resources: not enough object-store memory on {node.name}: data, partition and model need "
                f"{gigabytes(needed.store)}, but it has {gigabytes(node.store)}; start Ray there with a larger "
                "--object-store-memory"
            )


def cuda_requirements() -> str:
    """Driver and GPUs that the installed PyTorch needs."""
    cuda = torch.version.cuda
    if cuda is None:
        return (
            f"PyTorch {torch.__version__} on this machine is built without CUDA; nodes with GPUs need a build with it"
        )
    driver, capabilities = DRIVERS.get(cuda.split(".")[0]), compute_capabilities()
    least = f", version {driver} or newer" if driver else ""
    kernels = f", and GPUs of compute capability {capabilities[0]} or newer" if capabilities else ""
    return f"PyTorch {torch.__version__} needs an NVIDIA driver for CUDA {cuda}{least}{kernels}"


def _size(resources: Resources) -> str:
    share = resources.reserved_gpus
    on_each = f", {int(1 / share + 1e-6)} per GPU" if 0 < share < 1 else ""
    return f"{resources.cpus_per_actor:g} CPU and {share:g} GPU each{on_each}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _at_once(search: SearchSpec, room: int) -> int:
    """Number of trials that run at once, given room for `room` of them."""
    section, configurations = search.search, search.configurations
    trials = len(configurations) or section.samples or room
    room = min(room, section.concurrency or room)
    if section.packed and configurations:
        size = None if section.packed == "auto" else section.packed
        trials = len(pack_trials([search.trial(overrides) for overrides in configurations], room, size))
    return min(room, trials)


def _rows(
    resources: Resources, nodes: Sequence[Node], placed: Sequence[int], needed: MemoryEstimate
) -> list[dict[str, Any]]:
    """One row per node. Consecutive nodes with equal rows share a row."""
    rows: list[dict[str, Any]] = []
    kinds: list[str] = []
    for node, actors in zip(nodes, placed, strict=True):
        row = {
            "nodes": 1,
            "first": node.name,
            "actors": f"{actors} of {actors_that_fit(resources, [node.resources])}",
            "CPUs": f"{actors * resources.cpus_per_actor:g} of {node.resources.get('CPU', 0):g}",
            "GPUs": f"{actors * resources.reserved_gpus:g} of {node.resources.get('GPU', 0):g}",
            "memory at least": f"{gigabytes(actors * needed.actor)} of {gigabytes(node.memory)}",
            "object store": f"{gigabytes(needed.store if actors else 0)} of {gigabytes(node.store)}",
        }
        kind = json.dumps({**row, "first": ""})
        if kinds and kinds[-1] == kind:
            rows[-1]["nodes"] += 1
        else:
            rows.append(row)
            kinds.append(kind)
    return rows
