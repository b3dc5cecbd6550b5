"""JSON schemas of KubeRay's API (ray.io/v1 of KubeRay 1.5) and of its pods, as far as they are used here.

Written by hand after the types of the operator's `ray-operator/apis/ray/v1` and of Kubernetes' core/v1. A key that
these types do not have, or a value of another type, is refused.
"""

from typing import Any

WORD, NUMBER, TRUTH = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
WORDS = {"type": "object", "additionalProperties": {"type": "string"}}
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
QUANTITY = {"type": "string", "pattern": "^[0-9]+(\\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"}


def record(required: str, **properties: Any) -> dict[str, Any]:
    """An object with these keys and no others. required: names of the required keys, separated by blanks."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def list_of(item: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least}


META = record("name", name=NAME, namespace=NAME, labels=WORDS, annotations=WORDS)
AMOUNTS = {
    "type": "object",
    "properties": {"cpu": QUANTITY, "memory": QUANTITY, "ephemeral-storage": QUANTITY, "nvidia.com/gpu": QUANTITY},
    "additionalProperties": False,
}
PORT = record("containerPort", containerPort={"type": "integer", "minimum": 1, "maximum": 65535}, name=NAME)
CONTAINER = record(
    "name image",
    name=NAME,
    image=WORD,
    command=list_of({"type": "string"}),
    args=list_of({"type": "string"}),
    env=list_of(record("name", name=WORD, value={"type": "string"}, valueFrom={"type": "object"})),
    ports=list_of(PORT),
    resources=record("", requests=AMOUNTS, limits=AMOUNTS),
    volumeMounts=list_of(record("name mountPath", name=NAME, mountPath=WORD, readOnly=TRUTH, subPath=WORD)),
    readinessProbe={"type": "object"},
    imagePullPolicy={"enum": ["Always", "Never", "IfNotPresent"]},
)
VOLUME = record(
    "name",
    name=NAME,
    persistentVolumeClaim=record("claimName", claimName=NAME, readOnly=TRUTH),
    configMap=record("name", name=NAME),
    emptyDir=record("", medium=WORD, sizeLimit=QUANTITY),
)
POD = record(
    "spec",
    metadata=record("", labels=WORDS, annotations=WORDS),
    spec=record(
        "containers",
        containers=list_of(CONTAINER, least=1),
        volumes=list_of(VOLUME),
        securityContext=record("", fsGroup=NUMBER, runAsUser=NUMBER, runAsGroup=NUMBER),
        nodeSelector=WORDS,
        tolerations=list_of({"type": "object"}),
        serviceAccountName=NAME,
    ),
)
SERVICE_TYPE = {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}
CLUSTER_SPEC = record(
    "headGroupSpec",
    rayVersion=WORD,
    authOptions=record("", mode={"enum": ["disabled", "token"]}),
    headGroupSpec=record("template", serviceType=SERVICE_TYPE, rayStartParams=WORDS, template=POD),
    workerGroupSpecs=list_of(
        record(
            "groupName template minReplicas maxReplicas",
            groupName=NAME,
            replicas=NUMBER,
            minReplicas=NUMBER,
            maxReplicas=NUMBER,
            numOfHosts=NUMBER,
            idleTimeoutSeconds=NUMBER,
            rayStartParams=WORDS,
            template=POD,
        )
    ),
    enableInTreeAutoscaling=TRUTH,
    suspend=TRUTH,
)
JOB_SPEC = record(
    "entrypoint rayClusterSpec",
    entrypoint=WORD,
    rayClusterSpec=CLUSTER_SPEC,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    runtimeEnvYAML=WORD,
    shutdownAfterJobFinishes=TRUTH,
    ttlSecondsAfterFinished=NUMBER,
    activeDeadlineSeconds=NUMBER,
    backoffLimit=NUMBER,
    suspend=TRUTH,
)
CLAIM_SPEC = record(
    "accessModes resources",
    accessModes=list_of({"enum": ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]}, least=1),
    resources=record("requests", requests=record("storage", storage=QUANTITY)),
    storageClassName=NAME,
)
DEPLOYMENT_SPEC = record(
    "selector template",
    replicas=NUMBER,
    strategy=record("", type={"enum": ["Recreate", "RollingUpdate"]}),
    selector=record("matchLabels", matchLabels=WORDS),
    template=POD,
)
SERVICE_SPEC = record(
    "ports",
    type=SERVICE_TYPE,
    selector=WORDS,
    ports=list_of(record("port", port=NUMBER, targetPort={"type": ["integer", "string"]}, name=NAME), least=1),
)


def document(version: str, **spec: Any) -> dict[str, Any]:
    body = " ".join(spec)
    return record(f"apiVersion kind metadata {body}", apiVersion={"const": version}, kind=WORD, metadata=META, **spec)


SCHEMAS = {
    "RayCluster": document("ray.io/v1", spec=CLUSTER_SPEC),
    "RayJob": document("ray.io/v1", spec=JOB_SPEC),
    "PersistentVolumeClaim": document("v1", spec=CLAIM_SPEC),
    "Deployment": document("apps/v1", spec=DEPLOYMENT_SPEC),
    "Service": document("v1", spec=SERVICE_SPEC),
    "ConfigMap": document("v1", data=WORDS),
}
"""Schemas by kind of document."""
