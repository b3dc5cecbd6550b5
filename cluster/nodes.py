"""The nodes of a plan: nodes of a running cluster, this machine, or nodes described on the command line."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from pydantic import Field, ValidationError

from hedgerow.platform.actors.actor_room import local_gpus, local_resources, memory_of
from hedgerow.platform.common.errors import UserError, one_line
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
        return [Node("", _present(resources))] * self.count


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
            raise UserError(f"--nodes {text}: cannot be read: {one_line(error)}") from None
        values, lines = parse_yaml(content, lambda line: f"--nodes {text}:{line}")
        if isinstance(values, dict) and (types := _node_types(values, text)):
            return types
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


def _node_types(values: dict[str, Any], text: str) -> list[Node]:
    """The nodes that a cluster starts on demand, by the file of Ray's launcher or of KubeRay, at their largest number.

    Raises UserError for a type without resources. Empty for other files.
    """
    groups: list[tuple[str, int, int, dict[str, float]]]
    if "available_node_types" in values:
        types = values["available_node_types"]
        groups = [
            (name, kind.get("min_workers", 0), kind.get("max_workers", 0), kind.get("resources") or {})
            for name, kind in types.items()
            if name != values.get("head_node_type")
        ]
    else:
        groups = [
            (*(group[key] for key in ("groupName", "minReplicas", "maxReplicas")), _of_pod(group["template"]["spec"]))
            for group in _ray_cluster(values).get("workerGroupSpecs", [])
        ]
    for name, _, _, resources in groups:
        if not resources.get("CPU"):
            raise UserError(
                f"--nodes {text}: the node type {name!r} does not say its resources, which the cloud knows; add "
                "`resources: {CPU: ..., GPU: ..., memory: ...}`, with memory in bytes"
            )
    nodes = []
    for name, least, most, resources in groups:
        counts = {kind: float(resources.get(kind, 0)) for kind in ("CPU", "GPU")}
        # Ray starts a node with these resources: without `object_store_memory`, `memory` is all that the node has.
        memory = {kind: float(resources.get(kind, 0)) for kind in ("memory", "object_store_memory")}
        if not memory["object_store_memory"]:
            memory = memory_of(memory["memory"])
        for number in range(1, most + 1):
            label = f"{name} {number}" + ", started on demand" * (number > least)
            nodes.append(Node(label, _present(counts | memory)))
    return nodes


def _ray_cluster(values: dict[str, Any]) -> dict[str, Any]:
    """Specification of a RayCluster, or of the one of a RayJob."""
    spec = values.get("spec") or {}
    return spec.get("rayClusterSpec") or spec if str(values.get("apiVersion", "")).startswith("ray.io/") else {}


def _of_pod(spec: dict[str, Any]) -> dict[str, float]:
    """Resources of a pod's first container by Ray's names."""
    limits = spec["containers"][0].get("resources", {}).get("limits", {})
    unit = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
    memory = str(limits.get("memory", "0"))
    resources = {"memory": float(memory[:-2]) * unit[memory[-2:]] if memory[-2:] in unit else float(memory)}
    if "cpu" in limits:
        cpu = str(limits["cpu"])
        resources["CPU"] = float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu)
    if "nvidia.com/gpu" in limits:
        resources["GPU"] = float(limits["nvidia.com/gpu"])
    return resources


def _present(resources: dict[str, float]) -> dict[str, float]:
    """Resources that a node has, as Ray lists them."""
    return {kind: amount for kind, amount in resources.items() if amount}


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
    return Node("this machine", _present({"GPU": float(local_gpus()), **local_resources()}))


def cluster_nodes() -> list[Node]:
    """The live nodes of the cluster that this process is connected to."""
    live_nodes = [node for node in ray.nodes() if node["Alive"]]
    return [Node(node["NodeManagerAddress"], node["Resources"]) for node in live_nodes]
