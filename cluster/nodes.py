"""The nodes of a plan: nodes of a running cluster, this machine, or nodes described on the command line."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from pydantic import Field, ValidationError

from hedgerow.platform.actors.session import local_resources, memory_of
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.section import Section
from hedgerow.platform.config.validation_errors import explain
from hedgerow.platform.config.yaml_reader import Lines, parse_yaml

_GROUP = re.compile(r"(\d+)x\(([^()]*)\)")


@dataclass(frozen=True)
class Node:
    """A node and its resources by Ray's names, with memory in bytes."""

    name: str
    resources: dict[str, float]

    @property
    def memory(self) -> float:
        """Memory for processes in bytes, without the object store."""
        return self.resources.get("memory", 0.0)

    @property
    def store(self) -> float:
        return self.resources.get("object_store_memory", 0.0)


class NodeGroup(Section):
    """A group of identical nodes."""

    count: int = Field(1, ge=1, le=100_000, description="number of nodes")
    cpus: float = Field(ge=0, description="CPUs per node")
    gpus: int = Field(0, ge=0, description="GPUs per node")
    memory: float = Field(gt=0, description="memory per node, in GB")

    def nodes(self) -> list[Node]:
        resources = {"CPU": self.cpus, "GPU": float(self.gpus), **memory_of(self.memory * 1e9)}
        return [Node("", resources)] * self.count


class Nodes(Section):
    """Contents of a YAML file that describes nodes."""

    nodes: list[NodeGroup] = Field(min_length=1, description="groups of identical nodes")


def parse_nodes(text: str) -> list[Node]:
    """Parse nodes from groups such as "4x(cpus=16,gpus=2,memory=64)", joined by +, or from a YAML file.

    Raises UserError.
    """
    values: Any
    lines: Lines = {}
    if Path(text).suffix in (".yaml", ".yml"):
        try:
            content = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--nodes {text}: cannot be read: {' '.join(str(error).split())}") from None
        values, lines = parse_yaml(content, lambda line: f"--nodes {text}:{line}")
        if not isinstance(values, dict):
            raise UserError(f"--nodes {text}: write `nodes:` and a list below it, such as `- {{cpus: 16, memory: 64}}`")
    else:
        values = {"nodes": [_group(part.strip(), text) for part in text.split("+")]}
    try:
        groups = Nodes.model_validate(values, strict=True).nodes
    except ValidationError as error:
        raise explain(error, Nodes, values, lines, f"--nodes {text}") from None
    nodes = [node for group in groups for node in group.nodes()]
    return [Node(f"node {number}", node.resources) for number, node in enumerate(nodes, start=1)]


def _group(part: str, text: str) -> dict[str, Any]:
    match = _GROUP.fullmatch(part)
    if not match:
        raise UserError(
            f"--nodes {text}: write groups such as 4x(cpus=16,gpus=2,memory=64), joined by +, or a YAML file"
        )
    values: dict[str, Any] = {"count": int(match[1])}
    for setting in match[2].split(","):
        key, _, number = setting.partition("=")
        values[key.strip()], _ = parse_yaml(number, lambda line: f"--nodes {text}")
    return values


def local_node() -> Node:
    """This machine, with the resources that Ray would detect if a run started it."""
    return Node("this machine", {"GPU": float(torch.cuda.device_count()), **local_resources()})


def cluster_nodes() -> list[Node]:
    """The live nodes of the cluster that this process is connected to."""
    live_nodes = [node for node in ray.nodes() if node["Alive"]]
    return [Node(node["NodeManagerAddress"], node["Resources"]) for node in live_nodes]
