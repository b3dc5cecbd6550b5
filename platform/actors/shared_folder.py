"""Check whether the nodes of a cluster share a folder with the driver."""

from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.platform.actors.actor_room import actors_that_fit
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.resources import Resources

PATIENCE = 60.0
"""Seconds that the nodes have to answer."""

NAMED = 4
"""Largest number of nodes that a message names."""


def check_shared(folder: Path, resources: Resources) -> None:
    """Check that all nodes with room for a trial share `folder`: each reads a token there and writes its own.

    Nodes on which no task runs are skipped, and so is the node of the driver. Raises UserError with the names of nodes
    that do not share it.
    """
    here = ray.get_runtime_context().get_node_id()
    others = {
        node["NodeID"]: node
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] != here and actors_that_fit(resources, [node["Resources"]])
    }
    if not others:
        return
    # New names: a network file system may remember for a while that a file does not exist.
    token = folder / f".shared-{token_hex(8)}"
    token.write_text(token.name)
    try:
        calls = {
            node: _answer.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                token, node
            )
            for node in others
        }
        ray.wait(list(calls.values()), num_returns=len(calls), timeout=PATIENCE)
        absent = [node for node, call in calls.items() if not _is_shared(token, node, call)]
    finally:
        for file in folder.glob(f"{token.name}*"):
            file.unlink()
    if absent:
        raise unshared(folder, ", ".join(map(name_of, (others[node] for node in absent[:NAMED]))), len(absent))


def unshared(folder: Path, names: str, nodes: int = 1) -> UserError:
    """Error for nodes that do not share the folder of a search."""
    return UserError(
        f"output: node{'s' * (nodes > 1)} {names}{f' and {nodes - NAMED} others' * (nodes > NAMED)} "
        f"do{'es' * (nodes == 1)} not share the folder {folder}, to which the trials of a search write on every node; "
        "set output to a folder that all nodes share"
    )


def name_of(node: Mapping[str, Any]) -> str:
    """Name and address of a node, from its record in `ray.nodes()`."""
    return f"{node['NodeName']} ({node['NodeManagerAddress']})"


def _is_shared(token: Path, node: str, call: Any) -> bool:
    try:
        return bool(ray.get(call, timeout=0)) and _answer_file(token, node).exists()
    except RayError:
        # A node that is lost or broken: its trials start on others.
        return True


def _answer_file(token: Path, node: str) -> Path:
    return token.with_name(f"{token.name}-{node}")


@ray.remote(num_cpus=0, max_retries=0)
def _answer(token: Path, node: str) -> bool:
    """Read a token, and write one."""
    try:
        if token.read_text() != token.name:
            return False
        _answer_file(token, node).touch()
    except OSError:
        return False
    return True
