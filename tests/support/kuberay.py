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
SECRET_KEY = record("key", name=WORD, key=WORD, optional=TRUTH)
FIELD = record("fieldPath", apiVersion=WORD, fieldPath=WORD)
SOURCE = {
    **record(
        "",
        fieldRef=FIELD,
        resourceFieldRef=record("resource", containerName=NAME, resource=WORD, divisor=QUANTITY),
        configMapKeyRef=SECRET_KEY,
        secretKeyRef=SECRET_KEY,
    ),
    "minProperties": 1,
    "maxProperties": 1,
}
"""EnvVarSource: exactly one of its fields."""
SECCOMP = {
    **record("type", type={"enum": ["Unconfined", "RuntimeDefault", "Localhost"]}, localhostProfile=WORD),
    "if": {"properties": {"type": {"const": "Localhost"}}},
    "then": {"required": ["type", "localhostProfile"]},
    "else": {"not": {"required": ["localhostProfile"]}},
}
SELINUX = record("", user=WORD, role=WORD, type=WORD, level=WORD)
APP_ARMOR = record("type", type={"enum": ["Unconfined", "RuntimeDefault", "Localhost"]}, localhostProfile=WORD)
CONTAINER_SECURITY = record(
    "",
    capabilities=record("", add=list_of(WORD), drop=list_of(WORD)),
    privileged=TRUTH,
    seLinuxOptions=SELINUX,
    runAsUser=NUMBER,
    runAsGroup=NUMBER,
    runAsNonRoot=TRUTH,
    readOnlyRootFilesystem=TRUTH,
    allowPrivilegeEscalation=TRUTH,
    procMount={"enum": ["Default", "Unmasked"]},
    seccompProfile=SECCOMP,
    appArmorProfile=APP_ARMOR,
)
POD_SECURITY = record(
    "",
    seLinuxOptions=SELINUX,
    runAsUser=NUMBER,
    runAsGroup=NUMBER,
    runAsNonRoot=TRUTH,
    supplementalGroups=list_of(NUMBER),
    supplementalGroupsPolicy={"enum": ["Merge", "Strict"]},
    fsGroup=NUMBER,
    fsGroupChangePolicy={"enum": ["OnRootMismatch", "Always"]},
    seLinuxChangePolicy={"enum": ["MountOption", "Recursive"]},
    sysctls=list_of(record("name value", name=WORD, value={"type": "string"})),
    seccompProfile=SECCOMP,
    appArmorProfile=APP_ARMOR,
)
TOLERATION = {
    **record(
        "",
        key=WORD,
        operator={"enum": ["Exists", "Equal"]},
        value={"type": "string"},
        effect={"enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"]},
        tolerationSeconds=NUMBER,
    ),
    # No value for Exists; an empty key needs Exists; seconds are for NoExecute alone.
    "allOf": [
        {
            "if": {"properties": {"operator": {"const": "Exists"}}, "required": ["operator"]},
            "then": {"not": {"required": ["value"]}},
            "else": {"required": ["key"]},
        },
        {
            "if": {"required": ["tolerationSeconds"]},
            "then": {"properties": {"effect": {"const": "NoExecute"}}, "required": ["effect"]},
        },
    ],
}
ENV = list_of(record("name", name=WORD, value={"type": "string"}, valueFrom=SOURCE))
MOUNTS = list_of(record("name mountPath", name=NAME, mountPath=WORD, readOnly=TRUTH, subPath=WORD))
RESOURCES = record("", requests=AMOUNTS, limits=AMOUNTS)
PULL = {"enum": ["Always", "Never", "IfNotPresent"]}
CONTAINER = record(
    "name image",
    name=NAME,
    image=WORD,
    command=list_of({"type": "string"}),
    args=list_of({"type": "string"}),
    env=ENV,
    ports=list_of(PORT),
    resources=RESOURCES,
    volumeMounts=MOUNTS,
    readinessProbe={"type": "object"},
    imagePullPolicy=PULL,
    securityContext=CONTAINER_SECURITY,
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
        initContainers=list_of(CONTAINER),
        securityContext=POD_SECURITY,
        nodeSelector=WORDS,
        tolerations=list_of(TOLERATION),
        restartPolicy={"enum": ["Always", "OnFailure", "Never"]},
        hostNetwork=TRUTH,
        hostPID=TRUTH,
        hostIPC=TRUTH,
        serviceAccountName=NAME,
    ),
)
CREDENTIAL = record("", valueFrom=SOURCE, value={"type": "string"})
REDIS = record(
    "redisAddress",
    redisAddress=WORD,
    redisUsername=CREDENTIAL,
    redisPassword=CREDENTIAL,
    externalStorageNamespace=WORD,
)
"""GcsFaultToleranceOptions."""
AUTOSCALER = record(
    "",
    resources=RESOURCES,
    image=WORD,
    imagePullPolicy=PULL,
    securityContext=CONTAINER_SECURITY,
    idleTimeoutSeconds=NUMBER,
    upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
    version={"enum": ["v1", "v2"]},
    env=ENV,
    envFrom=list_of({"type": "object"}),
    volumeMounts=MOUNTS,
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
    autoscalerOptions=AUTOSCALER,
    gcsFaultToleranceOptions=REDIS,
    suspend=TRUTH,
)
JOB_SPEC = record(
    "entrypoint rayClusterSpec",
    entrypoint=WORD,
    rayClusterSpec=CLUSTER_SPEC,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    submitterPodTemplate=POD,
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
