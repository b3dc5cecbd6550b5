"""JSON schemas of manifests, from the custom resource definitions of KubeRay.

They contain the types of Kubernetes that the other manifests have, too. A key that a type does not have is refused.
"""

import gzip
import json
from typing import Any

from paths import ROOT

FOLDER = ROOT / "tests" / "cluster" / "kuberay"
VERSIONS = ("1.5.1", "1.7.0")


def schemas(version: str) -> dict[str, Any]:
    """Schemas by kind of document. version: of KubeRay."""
    cluster, job = (_strict(_read(kind, version)) for kind in ("RayCluster", "RayJob"))
    head = cluster["properties"]["spec"]["properties"]["headGroupSpec"]["properties"]
    pod = head["template"]
    volumes, affinity = (pod["properties"]["spec"]["properties"][key] for key in ("volumes", "affinity"))
    claim = volumes["items"]["properties"]["ephemeral"]["properties"]["volumeClaimTemplate"]["properties"]["spec"]
    terms = affinity["properties"]["podAffinity"]["properties"]["requiredDuringSchedulingIgnoredDuringExecution"]
    deployment = {
        "replicas": {"type": "integer"},
        "strategy": _record(type={"enum": ["Recreate", "RollingUpdate"]}),
        "selector": terms["items"]["properties"]["labelSelector"],
        "template": pod,
    }
    texts = {"type": "object", "additionalProperties": {"type": "string"}}

    def document(schema: dict[str, Any], version: str) -> dict[str, Any]:
        """The schema of a whole document, with the keys that all kinds have."""
        body = next(key for key in ("spec", "data") if key in schema["properties"])
        common = {
            "apiVersion": {"const": version},
            "kind": {"type": "string"},
            "metadata": pod["properties"]["metadata"],
        }
        return {**schema, "properties": schema["properties"] | common, "required": [*common, body]}

    return {
        "RayCluster": document(cluster, "ray.io/v1"),
        "RayJob": document(job, "ray.io/v1"),
        "Service": document(head["headService"], "v1"),
        "PersistentVolumeClaim": document(_record(spec=claim), "v1"),
        "Deployment": document(_record(spec=_record(**deployment)), "apps/v1"),
        "ConfigMap": document(_record(data=texts), "v1"),
    }


def _read(kind: str, version: str) -> Any:
    return json.loads(gzip.decompress((FOLDER / f"{kind}-{version}.json.gz").read_bytes()))


def _strict(schema: Any) -> Any:
    """The schema, in which objects with properties have no others."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _strict(value) for key, value in schema.items()}
    # A property may be called properties, too.
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed


def _record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}
