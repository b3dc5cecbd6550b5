"""Body of the command `plan`: a dry run of placement, with actors per node, memory and estimated round time."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import ray

from hedgerow.algorithms.core.pytree import leaves
from hedgerow.cluster.feasibility import MemoryEstimate, check_memory, estimate_memory, place
from hedgerow.cluster.nodes import Node, cluster_nodes, local_node, parse_nodes
from hedgerow.cluster.round_time import measure_round_time, predict_round_time
from hedgerow.platform.actors.placement import actors_that_fit, count_actors, shares_of_a_gpu
from hedgerow.platform.actors.session import ray_session, starts_here
from hedgerow.platform.common.memory import gigabytes
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment, read_file
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.factory import build_algorithms, check
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.platform.ui.terminal import print_rows
from hedgerow.searchspaces.spaces.packing import client_actors, pack_trials
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search


def plan_file(
    file: Path, overrides: Sequence[str], data_root: Path | None, address: str | None, nodes: str | None, measure: bool
) -> CommandOutput:
    """The placement of a run, or of a search if the file has one. Raises UserError.

    measure: run some rounds here, to predict the seconds of a round.
    """
    described = parse_nodes(nodes) if nodes else None
    search = load_search(file, overrides) if "search" in read_file(file, overrides)[0] else None
    experiment = search.experiment if search else load_experiment(file, overrides)
    dataset, partition = check(experiment, data_root)
    if described is not None:
        available = described
    elif starts_here(address) and not ray.is_initialized():
        available = [local_node()]
    else:
        with ray_session(address):
            available = cluster_nodes()
    return _plan(experiment, dataset, partition, available, search, measure)


def _plan(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    nodes: list[Node],
    search: SearchSpec | None,
    measure: bool,
) -> CommandOutput:
    resources, cohort = experiment.resources, experiment.cohort_size(len(partition))
    if resources.executor == "inline":
        text = f"{experiment.name}: inline, in the driver's process, without client actors"
        return CommandOutput({"name": experiment.name, "executor": "inline"}, lambda: click.echo(text))
    if search:
        resources = resources.model_copy(update={"actors": client_actors(resources), "min_actors": None})
    workers = count_actors(resources, cohort, [node.resources for node in nodes], [node.name for node in nodes])
    fit = actors_that_fit(resources, [node.resources for node in nodes])
    each = min(workers, fit)
    room = fit // each
    trials = _at_once(search, room) if search else 1
    algorithm = build_algorithms([experiment], dataset, partition)[0]
    needed = estimate_memory(experiment, algorithm, dataset, partition, each)
    placed = place(resources, trials * each, nodes)
    check_memory(nodes, placed, needed)
    parameters = sum(leaf.numel() for leaf in leaves(algorithm.task.init()))
    cores = int(sum(node.resources.get("CPU", 0) for node in nodes))
    rows = _rows(resources, nodes, placed, needed)
    if measure:
        seconds = measure_round_time(experiment, dataset, partition, parameters, each)
    else:
        seconds = predict_round_time(experiment, parameters, partition, each, cores)
    where = "the coordinator: no CPU reserved, next to the driver"
    several = f"{_count(each, 'client actor')} of {_size(resources)}"
    if each < workers:
        several += f" (others join as nodes do, up to {workers})"
    if search:
        several = f"room for {room} trials at once of {several}, of which {trials} run"
        where = "the coordinators: no CPU reserved, next to the driver or in each trial"
    most = -(-cohort // each)

    def render() -> None:
        click.echo(
            f"{experiment.name}: {several}, {_how(resources)}; up to {_count(most, 'client')} of a round on each"
        )
        print_rows(rows, "Placement")
        click.echo(where)
        click.echo(seconds)

    document = {
        "name": experiment.name,
        "executor": resources.executor,
        "trials": trials,
        "actors": each,
        "placement": rows,
        "round": seconds,
    }
    return CommandOutput(document, render)


def _size(resources: Resources) -> str:
    share = resources.gpus_per_actor
    on_each = f", {shares_of_a_gpu(share)} on each GPU" if 0 < share < 1 else ""
    return f"{resources.cpus_per_actor:g} CPU and {share:g} GPU each{on_each}"


def _how(resources: Resources) -> str:
    if resources.actors_per_node:
        return f"{resources.actors_per_node} on each node"
    return "on as few nodes as hold them" if resources.placement == "pack" else "spread over the nodes"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number > 1)}"


def _at_once(search: SearchSpec, room: int) -> int:
    """The number of trials that run at once, if there is room for `room`."""
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
    """One row per node; consecutive nodes with equal rows share one."""
    rows: list[dict[str, Any]] = []
    kinds: list[str] = []
    for node, actors in zip(nodes, placed, strict=True):
        row = {
            "nodes": 1,
            "first": node.name,
            "actors": f"{actors} of {actors_that_fit(resources, [node.resources])}",
            "CPUs": f"{actors * resources.cpus_per_actor:g} of {node.resources.get('CPU', 0):g}",
            "GPUs": f"{actors * resources.gpus_per_actor:g} of {node.resources.get('GPU', 0):g}",
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
