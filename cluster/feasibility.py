"""What of an experiment would be placed where, whether it fits, and what a round would take where a model knows it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import ray

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.pytree import leaves
from hedgerow.cluster.measured_time import measured
from hedgerow.cluster.nodes import Node, described, present, this_machine
from hedgerow.cluster.round_time import Round, fitted
from hedgerow.platform.actors.placement import actors_that_fit, count_actors, reserved_memory, shares_of_a_gpu
from hedgerow.platform.actors.session import ray_session, starts_here
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.memory import gigabytes
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.factory import build_algorithms, check
from hedgerow.platform.config.loader import load_experiment, read_file
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.ui.command_output import Answer
from hedgerow.platform.ui.terminal import print_rows
from hedgerow.searchspaces.spaces.packing import client_actors, dealt
from hedgerow.searchspaces.spaces.search_file import SearchPlan, load_search

PROCESS = 0.6e9
"""Bytes that a client actor's process holds once torch is imported, on a CPU (docs/performance.md, design)."""


@dataclass(frozen=True)
class Budget:
    """Bytes that are known beforehand. What a chunk of clients takes while it trains is known only for `memory_mb`."""

    actor: float
    """Of each client actor: its process and its clients' states in memory; or `memory_mb`, if that is more."""
    store: float
    """Of a node's object store: data set, partition, and the broadcast model."""


def place(resources: Resources, actors: int, nodes: Sequence[Node]) -> list[int]:
    """How many of the actors each node hosts, of nodes that have room for all; Ray decides among equal ones."""
    room = [actors_that_fit(resources, [node.resources]) for node in nodes]
    placed = [0] * len(nodes)
    by_room = sorted(range(len(nodes)), key=lambda index: -room[index])
    if resources.placement == "pack":
        for index in by_room:
            placed[index] = min(room[index], actors - sum(placed))
        return placed
    while sum(placed) < actors:
        for index in by_room:
            placed[index] += placed[index] < room[index] and sum(placed) < actors
    return placed


def budget(experiment: Experiment, algorithm: Algorithm, dataset: Dataset, partition: Partition, actors: int) -> Budget:
    """What is known beforehand of an experiment's memory."""
    resources = experiment.resources
    state = sum(leaf.nbytes for leaf in leaves(algorithm.init_client()))
    states = min(state * -(-len(partition) // actors), 1e6 * resources.state_memory_mb)
    data = [value for arrays in (dataset.arrays(), partition.arrays()) for value in arrays.values()]
    model = sum(leaf.nbytes for leaf in leaves(algorithm.task.init()))
    actor = max(PROCESS + states, reserved_memory(resources))
    return Budget(actor, sum(x.nbytes for x in data if isinstance(x, np.ndarray)) + model)


def check_memory(nodes: Sequence[Node], placed: Sequence[int], needed: Budget) -> None:
    """Raises UserError, with the node and what lacks, where the known memory is more than there is."""
    for node, actors in zip(nodes, placed, strict=True):
        if actors and actors * needed.actor > node.memory:
            raise UserError(
                f"resources: memory lacks on {node.name}: {actors} client actors take "
                f"{gigabytes(actors * needed.actor)} at least, and {gigabytes(node.memory)} are left beside the object "
                "store; lower resources.actors, memory_mb or state_memory_mb, or raise cpus_per_actor"
            )
        if actors and needed.store > node.store:
            raise UserError(
                f"resources: object-store memory lacks on {node.name}: data, partition and model take "
                f"{gigabytes(needed.store)}, and it has {gigabytes(node.store)}; start Ray there with a larger "
                "--object-store-memory"
            )


def expected(experiment: Experiment, parameters: int, partition: Partition, actors: int, cores: int) -> str:
    """A sentence on the seconds of a round: the prediction and what it is based on, or why there is none."""
    known, engine, model = fitted(), experiment.engine, experiment.task.model.name
    if experiment.algorithm.name != "fedavg" or model != "mlp":
        why = f"{experiment.algorithm.name} on {model}"
    elif experiment.resources.gpu:
        why = "GPUs"
    elif engine.mode == "loop" or engine.compile is True:
        why = "a loop over clients" if engine.mode == "loop" else "compiled steps"
    else:
        why = ""
    if why:
        return (
            f"seconds per round: no prediction, since {why} were not measured (only {known['measured']}); --measure "
            "runs some rounds here"
        )
    batches = experiment.algorithm.batches["train"]  # type: ignore[attr-defined]
    sizes = partition.shares()["train"].sizes
    steps = batches.steps or float(np.mean(batches.epochs * np.ceil(sizes / (batches.size or sizes))))
    round = Round(parameters, experiment.cohort_size(len(partition)), actors, steps, cores)
    beyond = round.beyond()
    if batches.size != known["batch_size"]:
        beyond.append(f"mini-batches of {batches.size or 'all samples'}")
    if engine.chunk not in ("auto", round.chunk):
        beyond.append(f"{engine.chunk} clients at once")
    error = f"{known['largest error where not fitted']:.0%} off at most where it was checked"
    reach = f"; extrapolated to {', '.join(beyond)}" if beyond else ""
    return (
        f"seconds per round: {round.seconds():.3g} predicted for training alone on cores like those measured: "
        f"{known['measured']} ({error}){reach}"
    )


def plan_file(
    file: Path, overrides: Sequence[str], data_root: Path | None, address: str | None, nodes: str | None, measure: bool
) -> Answer:
    """What a run, or a search where the file has one, would place on the nodes. Raises UserError.

    measure: predict a round's seconds from rounds that are run here.
    """
    described_nodes = described(nodes) if nodes else None
    search = load_search(file, overrides) if "search" in read_file(file, overrides)[0] else None
    experiment = search.experiment if search else load_experiment(file, overrides)
    dataset, partition = check(experiment, data_root)
    if described_nodes is not None:
        found = described_nodes
    elif starts_here(address) and not ray.is_initialized():
        found = this_machine()
    else:
        with ray_session(address):
            found = present()
    return _answer(experiment, dataset, partition, found, search, measure)


def _answer(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    nodes: list[Node],
    search: SearchPlan | None,
    measure: bool,
) -> Answer:
    resources, cohort = experiment.resources, experiment.cohort_size(len(partition))
    if resources.executor == "inline":
        told = f"{experiment.name}: inline, in the driver's process, without client actors"
        return Answer({"name": experiment.name, "executor": "inline"}, lambda: click.echo(told))
    if search:
        resources = resources.model_copy(update={"actors": client_actors(resources), "min_actors": None})
    workers = count_actors(resources, cohort, [node.resources for node in nodes], [node.name for node in nodes])
    fit = actors_that_fit(resources, [node.resources for node in nodes])
    each = min(workers, fit)
    room = fit // each
    trials = _at_once(search, room) if search else 1
    algorithm = build_algorithms([experiment], dataset, partition)[0]
    needed = budget(experiment, algorithm, dataset, partition, each)
    placed = place(resources, trials * each, nodes)
    check_memory(nodes, placed, needed)
    parameters = sum(leaf.numel() for leaf in leaves(algorithm.task.init()))
    cores = int(sum(node.resources.get("CPU", 0) for node in nodes))
    rows = _rows(resources, nodes, placed, needed)
    if measure:
        seconds = measured(experiment, dataset, partition, parameters, each)
    else:
        seconds = expected(experiment, parameters, partition, each, cores)
    where = "the coordinator: no CPU reserved, beside the driver"
    several = f"{_count(each, 'client actor')} of {_size(resources)}"
    if each < workers:
        several += f" (others join as nodes do, up to {workers})"
    if search:
        several = f"room for {room} trials at once of {several}, of which {trials} run"
        where = "the coordinators: no CPU reserved, beside the driver or in each trial"
    most = -(-cohort // each)

    def tell() -> None:
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
    return Answer(document, tell)


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


def _at_once(search: SearchPlan, room: int) -> int:
    """How many trials run at once where there is room for so many."""
    section, found = search.search, search.configurations
    trials = len(found) or section.samples or room
    room = min(room, section.concurrency or room)
    if section.packed and found:
        size = None if section.packed == "auto" else section.packed
        trials = len(dealt([search.trial(overrides) for overrides in found], room, size))
    return min(room, trials)


def _rows(resources: Resources, nodes: Sequence[Node], placed: Sequence[int], needed: Budget) -> list[dict[str, Any]]:
    """One row per node, or per run of nodes that are alike."""
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
