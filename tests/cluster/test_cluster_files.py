"""The files that set up clusters: as those who read them would find them, as far as it can be known without these.

Ray's schema and the command lines of Ray and MLflow are asked themselves; KubeRay's schemas are copies.
"""

import copy
import itertools
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import ray.autoscaler
import yaml
from internals import check_launcher_file, prepare_launcher_file
from kuberay import VERSIONS, schemas
from mlflow.cli import server as mlflow_server
from paths import ROOT
from ray.scripts.scripts import get_auth_token
from ray.scripts.scripts import start as ray_start

from hedgerow.cli import main
from hedgerow.cluster.nodes import parse_nodes
from hedgerow.cluster.submission import PACKAGES, check_command
from hedgerow.platform.config.loader import parse_experiment

FILES = ROOT / "cluster" / "files"
PINNED = dict(
    line.split(";")[0].strip().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line
)
LAUNCHERS = ("ray-onprem.yaml", "ray-aws.yaml")
MANIFESTS = ("kuberay-storage.yaml", "kuberay-redis.yaml", "kuberay-cluster.yaml", "kuberay-job.yaml")


def documents(name: str) -> dict[str, Any]:
    """Of a manifest, by kind and name."""
    found = list(yaml.safe_load_all((FILES / name).read_text()))
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in found}


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def given(words: list[str]) -> set[str]:
    return {word.split("=")[0] for word in words if word.startswith("--")}


def pods() -> dict[str, Any]:
    """The pods of all manifests."""
    found = {
        "mlflow": documents("kuberay-storage.yaml")["Deployment/mlflow"]["spec"]["template"],
        "redis": documents("kuberay-redis.yaml")["Deployment/redis"]["spec"]["template"],
        "submitter": documents("kuberay-job.yaml")["RayJob/hedgerow-digits"]["spec"]["submitterPodTemplate"],
    }
    for name, spec in clusters().items():
        found[f"{name} head"] = spec["headGroupSpec"]["template"]
        found |= {f"{name} {group['groupName']}": group["template"] for group in spec["workerGroupSpecs"]}
    return found


def clusters() -> dict[str, Any]:
    return {
        "cluster": documents("kuberay-cluster.yaml")["RayCluster/hedgerow"]["spec"],
        "job": documents("kuberay-job.yaml")["RayJob/hedgerow-digits"]["spec"]["rayClusterSpec"],
    }


def uncommented(name: str, first: str) -> dict[str, Any]:
    """The keys of a file's commented lines from `first` on."""
    lines = (FILES / name).read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip() == f"# {first}")
    indent = lines[start].index("#")
    block = itertools.takewhile(lambda line: line[indent:].startswith("# "), lines[start:])
    return yaml.safe_load("\n".join(line[indent + 2 :] for line in block))


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_file_is_what_ray_s_schema_wants(name):
    config = yaml.safe_load((FILES / name).read_text())
    check_launcher_file(config)
    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "max_worker": 3}, schema)
    if "available_node_types" in config:
        assert config["head_node_type"] in config["available_node_types"]
    else:
        assert config["max_workers"] == len(config["provider"]["worker_ips"])


NO_HISTORY = "RAY_task_events_report_interval_ms=0"


def test_images_and_allocations_keep_no_history_of_calls():
    assert f"\nENV {NO_HISTORY}\n" in (FILES / "Dockerfile").read_text()
    assert f"\nexport {NO_HISTORY}\n" in (FILES / "slurm.sh").read_text()


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_file_s_commands_have_options_that_exist(name):
    config = yaml.safe_load((FILES / name).read_text())
    lines = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    starts = [shlex.split(line.split("ray start", 1)[1]) for line in lines if "ray start" in line]
    assert len(starts) == 2
    for words in starts:
        assert given(words) <= options(ray_start)
    assert "--dashboard-host=127.0.0.1" in starts[0]
    assert all(f"{NO_HISTORY} RAY_AUTH_MODE=token ray start" in line for line in lines if "ray start" in line)
    (tracking,) = (
        shlex.split(line.split("mlflow server", 1)[1].split(">")[0]) for line in lines if "mlflow server" in line
    )
    assert given(tracking) <= options(mlflow_server)
    assert tracking[tracking.index("--host") + 1] == "127.0.0.1"


@pytest.mark.parametrize(("name", "kinds"), [("ray-onprem.yaml", 1), ("ray-aws.yaml", 2)])
def test_ray_fills_a_launcher_file_in(name, kinds):
    """What `ray up` makes of it, before it asks anybody for machines."""
    config = yaml.safe_load((FILES / name).read_text())
    filled = prepare_launcher_file(copy.deepcopy(config))
    check_launcher_file(filled)
    assert len(filled["available_node_types"]) == kinds
    (worker,) = (kind for kind in filled["available_node_types"] if kinds == 1 or kind != filled["head_node_type"])
    assert filled["available_node_types"][worker]["max_workers"] == config["max_workers"]
    # The commands of the file, and no default in addition.
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        assert filled[key] == config[key]
    for key in ("head_setup_commands", "worker_setup_commands"):
        assert filled[key][: len(config["setup_commands"])] == config["setup_commands"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_the_structure_of_its_kind(name, version):
    for key, manifest in documents(name).items():
        schema = jsonschema.Draft202012Validator(schemas(version)[key.split("/")[0]])
        schema.validate(manifest)
        for path in _paths(manifest):
            assert not schema.is_valid(_with(manifest, path, "unknwon", 1)), path


def _paths(value: Any) -> list[tuple[Any, ...]]:
    """The places of objects whose keys the schemas know one by one."""
    free = {"labels", "matchLabels", "data", "rayStartParams", "requests", "limits", "nodeSelector"}
    if isinstance(value, dict):
        return [()] + [(k, *rest) for k, v in value.items() if k not in free for rest in _paths(v)]
    return [(i, *rest) for i, v in enumerate(value) for rest in _paths(v)] if isinstance(value, list) else []


def _with(value: Any, path: tuple[Any, ...], key: str, new: Any) -> Any:
    changed = copy.deepcopy(value)
    place = changed
    for step in path:
        place = place[step]
    place[key] = new
    return changed


@pytest.mark.parametrize("name", ["cluster", "job"])
def test_a_manifest_s_cluster_has_tokens_and_the_options_of_ray(name):
    spec = clusters()[name]
    assert spec["authOptions"] == {"mode": "token"}
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert {f"--{key}" for key in group["rayStartParams"]} <= options(ray_start)
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip


def violations(pod: dict[str, Any], injected: list[dict[str, Any]] | None = None) -> list[str]:
    """Rules of the Pod Security Standard "restricted" (which includes "baseline") that a pod violates.

    injected: containers that the operator adds. No sysctl is allowed, although the standard allows some. The rules
    about Windows are left out.
    """
    spec, found = pod["spec"], []
    whole = spec.get("securityContext", {})
    containers = [*spec.get("initContainers", []), *spec["containers"], *(injected or [])]
    contexts = [container.get("securityContext", {}) for container in containers]
    ports = [port for container in containers for port in container.get("ports", [])]
    kinds_of_probes = ("readinessProbe", "livenessProbe", "startupProbe")
    actions = [container.get(kind, {}) for container in containers for kind in kinds_of_probes]
    probes = [action.get(kind, {}) for action in actions for kind in ("tcpSocket", "httpGet")]

    def rule(name: str, holds: bool) -> None:
        if not holds:
            found.append(name)

    def every(key: str, allowed: tuple[Any, ...]) -> bool:
        """A field of each container, or of the pod where a container leaves it out."""
        return all(one.get(key, whole.get(key)) in allowed for one in contexts)

    # Baseline.
    rule("host namespaces", not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")))
    rule("privileged", not any(one.get("privileged") for one in contexts))
    rule("host ports", not any(port.get("hostPort") for port in ports))
    rule("SELinux", not any("seLinuxOptions" in one for one in (whole, *contexts)))
    rule("AppArmor", all(one.get("appArmorProfile", {}).get("type") != "Unconfined" for one in (whole, *contexts)))
    rule("/proc", all(one.get("procMount", "Default") == "Default" for one in contexts))
    rule("probe hosts", not any(probe.get("host") for probe in probes))
    rule("sysctls", not whole.get("sysctls"))
    # Restricted.
    rule("volumes", all(set(volume) - {"name"} <= VOLUMES for volume in spec.get("volumes", [])))
    rule("escalation", all(one.get("allowPrivilegeEscalation") is False for one in contexts))
    rule("root", every("runAsNonRoot", (True,)))
    rule("user 0", all(one.get("runAsUser") != 0 for one in (whole, *contexts)))
    kinds = [one.get("seccompProfile", whole.get("seccompProfile", {})).get("type") for one in contexts]
    rule("seccomp", set(kinds) <= {"RuntimeDefault", "Localhost"})
    capabilities = [one.get("capabilities", {}) for one in contexts]
    rule("dropped capabilities", all("ALL" in one.get("drop", []) for one in capabilities))
    rule("added capabilities", all(set(one.get("add", [])) <= {"NET_BIND_SERVICE"} for one in capabilities))
    return found


def autoscaler_of(spec: dict[str, Any]) -> dict[str, Any]:
    """The container that KubeRay adds to the head, as far as the security rules are concerned."""
    return {"name": "autoscaler", "securityContext": spec["autoscalerOptions"]["securityContext"]}


def test_all_pods_meet_the_restricted_pod_security_standard():
    added = {f"{name} head": [autoscaler_of(spec)] for name, spec in clusters().items()}
    assert len(pods()) == 9
    for name, pod in pods().items():
        assert violations(pod, added.get(name)) == [], name


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("hostNetwork",), True, "host namespaces"),
        (("volumes",), [{"name": "x", "hostPath": {"path": "/"}}], "volumes"),
        (("securityContext", "runAsNonRoot"), False, "root"),
        (("securityContext", "runAsUser"), 0, "user 0"),
        (("securityContext", "seccompProfile"), {"type": "Unconfined"}, "seccomp"),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True, "escalation"),
        (("containers", 0, "securityContext", "privileged"), True, "privileged"),
        (("containers", 0, "securityContext", "capabilities", "drop"), ["NET_RAW"], "dropped capabilities"),
        (("containers", 0, "securityContext", "capabilities", "add"), ["SYS_PTRACE"], "added capabilities"),
        (("containers", 0, "securityContext", "runAsNonRoot"), False, "root"),
        (("containers", 0, "readinessProbe"), {"tcpSocket": {"port": 1, "host": "10.0.0.1"}}, "probe hosts"),
    ],
)  # fmt: skip
def test_the_rules_of_the_standard_notice_each_violation(path, value, rule):
    pod = pods()["cluster gpu"]
    assert violations({"spec": _with(pod["spec"], path[:-1], path[-1], value)}) == [rule]


@pytest.mark.parametrize("name", ["cluster", "job"])
def test_a_manifest_s_workers_start_on_demand_on_nodes_with_gpus(name):
    spec = clusters()[name]
    assert spec["enableInTreeAutoscaling"] is True
    # Of version 2, KubeRay itself sets the variables and the restart policy, but only where it is named.
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert [group["groupName"] for group in spec["workerGroupSpecs"]] == ["gpu", "cpu"]
    for group in spec["workerGroupSpecs"]:
        assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (0, 0, 4)
        pod = group["template"]["spec"]
        has_gpu = group["groupName"] == "gpu"
        tolerated = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
        assert pod.get("tolerations", []) == [tolerated] * has_gpu
        (container,) = pod["containers"]
        for key in ("requests", "limits"):
            assert ("nvidia.com/gpu" in container["resources"][key]) == has_gpu
        assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    # Nothing of the head runs on a GPU.
    (head,) = spec["headGroupSpec"]["template"]["spec"]["containers"]
    assert "nvidia.com/gpu" not in head["resources"]["limits"]
    nodes = [node.name for node in parse_nodes(str(FILES / "kuberay-cluster.yaml"))]
    assert (nodes[0], nodes[4]) == ("gpu 1, started on demand", "cpu 1, started on demand")


def test_both_manifests_describe_the_same_cluster():
    """But for the job's experiment, and the variables, which a job has in its runtime environment."""

    def common(spec: dict[str, Any]) -> dict[str, Any]:
        spec = copy.deepcopy(spec)
        pod = spec["headGroupSpec"]["template"]["spec"]
        pod["containers"][0].pop("env", None)
        for one in (pod["volumes"], pod["containers"][0]["volumeMounts"]):
            one[:] = [entry for entry in one if entry["name"] != "experiment"]
        return spec

    assert common(clusters()["cluster"]) == common(clusters()["job"])


def test_pods_pull_their_images_and_reserve_their_disk():
    for name, pod in pods().items():
        for container in pod["spec"]["containers"]:
            if name != "redis":
                assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
                assert container["imagePullPolicy"] == "IfNotPresent"
            if name not in ("redis", "submitter"):
                assert "ephemeral-storage" in container["resources"]["requests"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_control_store_s_redis_is_the_one_of_its_manifest(version):
    options = uncommented("kuberay-cluster.yaml", "gcsFaultToleranceOptions:")
    manifest = documents("kuberay-cluster.yaml")["RayCluster/hedgerow"]
    schema = jsonschema.Draft202012Validator(schemas(version)["RayCluster"])
    schema.validate(_with(manifest, ("spec",), "gcsFaultToleranceOptions", options["gcsFaultToleranceOptions"]))
    for changed in ({"redisAdress": "redis:6379"}, {"redisAddress": 6379}):
        assert not schema.is_valid(_with(manifest, ("spec",), "gcsFaultToleranceOptions", changed))
    redis = documents("kuberay-redis.yaml")
    service = redis["Service/redis"]["spec"]
    assert options["gcsFaultToleranceOptions"]["redisAddress"] == f"redis:{service['ports'][0]['port']}"
    assert service["selector"].items() <= redis["Deployment/redis"]["spec"]["template"]["metadata"]["labels"].items()
    (container,) = pods()["redis"]["spec"]["containers"]
    (variable,) = container["env"]
    assert variable["valueFrom"] == options["gcsFaultToleranceOptions"]["redisPassword"]["valueFrom"]
    # The password is in no file: a command creates the secret.
    assert container["args"][-2:] == ["--requirepass", f"$({variable['name']})"]
    secret = variable["valueFrom"]["secretKeyRef"]
    command = f"kubectl create secret generic {secret['name']} --from-literal={secret['key']}="
    assert command in (FILES / "kuberay-redis.yaml").read_text()


def test_nodes_on_aws_install_nothing_and_say_their_resources():
    config = yaml.safe_load((FILES / "ray-aws.yaml").read_text())
    assert config["setup_commands"] == []
    assert list(config["file_mounts"]) == ["/home/ray/.ray/auth_token"]
    nodes = parse_nodes(str(FILES / "ray-aws.yaml"))
    assert [node.name for node in nodes] == [f"gpu {n}, started on demand" for n in (1, 2, 3, 4)]
    gpu = config["available_node_types"]["gpu"]
    # What the plan shows is what Ray starts the node with.
    assert nodes[0].resources == gpu["resources"]
    assert gpu["node_config"]["InstanceType"] == "g5.4xlarge"
    assert {kind: gpu["resources"][kind] for kind in ("CPU", "GPU")} == {"CPU": 16, "GPU": 1}
    assert 0.85 * 64 * 2**30 < nodes[0].memory + nodes[0].store < 64 * 2**30
    mount = next(line for line in config["initialization_commands"] if "mount -t nfs4" in line)
    assert any("nfs-common" in line for line in config["initialization_commands"][:-2])
    assert f".efs.{config['provider']['region']}.amazonaws.com:/ /shared" in mount


def test_the_alternative_that_installs_at_start_is_a_launcher_file():
    config = yaml.safe_load((FILES / "ray-aws.yaml").read_text()) | uncommented("ray-aws.yaml", "docker:")
    check_launcher_file(config)
    filled = prepare_launcher_file(copy.deepcopy(config))
    assert filled["head_setup_commands"][: len(config["setup_commands"])] == config["setup_commands"]
    assert "constraints.txt" in config["setup_commands"][0]
    assert config["file_mounts"]["/home/ray/hedgerow"] == "."


def test_what_pods_mount_and_reach_is_there():
    storage = documents("kuberay-storage.yaml")
    redis = documents("kuberay-redis.yaml")
    claims = {key.split("/")[1] for key in [*storage, *redis] if key.startswith("PersistentVolumeClaim/")}
    maps = {key.split("/")[1] for key in documents("kuberay-job.yaml") if key.startswith("ConfigMap/")}
    for pod in pods().values():
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        for container in pod["spec"]["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes.keys()
        for volume in volumes.values():
            claim, config = volume.get("persistentVolumeClaim"), volume.get("configMap")
            assert claim["claimName"] in claims if claim else config["name"] in maps
    service = storage["Service/mlflow"]["spec"]
    assert service["selector"].items() <= storage["Deployment/mlflow"]["spec"]["template"]["metadata"]["labels"].items()
    command = pods()["mlflow"]["spec"]["containers"][0]["command"]
    assert given(command) <= options(mlflow_server)
    assert f"mlflow:{service['ports'][0]['port']}" in command[command.index("--allowed-hosts") + 1].split(",")


def test_the_job_runs_an_experiment_that_can_be_submitted(tmp_path, monkeypatch):
    found = documents("kuberay-job.yaml")
    job = found["RayJob/hedgerow-digits"]["spec"]
    text = found["ConfigMap/hedgerow-digits"]["data"]["experiment.yaml"]
    experiment = parse_experiment(yaml.safe_load(text))
    assert experiment.tracking.uri == "http://mlflow:5000"
    python, option, module, *command = shlex.split(job["entrypoint"])
    assert (python, option, module) == ("python", "-m", "hedgerow")
    (tmp_path / "experiment.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert command[1] == "/experiment/experiment.yaml"
    check_command([command[0], "experiment.yaml", *command[2:]], main, ships=False)
    # A job that starts again continues its run, on the volume that outlives the pods.
    assert "--job" in command
    assert job["backoffLimit"] > 0
    head = job["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    folders = {mount["mountPath"]: mount["name"] for mount in head["volumeMounts"]}
    variables = yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]
    for folder in (experiment.output, variables["HEDGEROW_DATA_ROOT"], variables["PYTHONPATH"]):
        assert folders[str(Path(folder).parent)] == "shared"
    gpu = job["rayClusterSpec"]["workerGroupSpecs"][0]
    limits = gpu["template"]["spec"]["containers"][0]["resources"]["limits"]
    per_gpu = int(1 / experiment.resources.gpus_per_actor)
    assert int(limits["cpu"]) >= per_gpu * int(limits["nvidia.com/gpu"]) * experiment.resources.cpus_per_actor
    # All workers are asked for, and all of them are used.
    assert experiment.resources.actors == gpu["maxReplicas"] * int(limits["nvidia.com/gpu"]) * per_gpu


def test_the_slurm_script_is_shell_and_its_commands_exist():
    script = FILES / "slurm.sh"
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""
    text = script.read_text()
    start = text[text.index("if ((SLURM_PROCID == 0))") : text.index("--block") + len("--block")]
    used = {word.strip('"').split("=")[0] for word in start.split() if word.strip('"').startswith("--")} - {"--"}
    assert {"--head", "--address", "--port", "--num-cpus", "--block"} <= used <= options(ray_start)
    assert all("--address" in options(main.commands[name]) for name in ("run", "search", "table", "resume"))
    restarted = re.search(r"^case \$1 in (.+?)\) set -- \"\$@\" --job ", text, re.MULTILINE)
    assert restarted
    assert {name for name in main.commands if "--job" in options(main.commands[name])} == set(restarted[1].split(" | "))
    assert "--generate" in options(get_auth_token)
    # Without a command it says what it needs, before it asks Slurm for anything.
    done = subprocess.run(["bash", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True)
    assert (done.returncode, done.stderr[:6]) == (2, b"usage:")


def test_the_slurm_script_reads_no_variable_that_slurm_overwrites():
    text = (FILES / "slurm.sh").read_text()
    read = set(re.findall(r"\$\{?([A-Za-z_]\w*)", text)) | {"SLURM_PROCID"}
    own = set(re.findall(r"(?<![\w-])([A-Za-z_]\w*)=", text)) | {"_"}
    # Slurm sets these, the third one because of --cpus-per-task. All others begin with HEDGEROW_.
    given = {"SLURM_JOB_ID", "SLURM_NNODES", "SLURM_CPUS_PER_TASK", "SLURM_PROCID"}
    assert "\n#SBATCH --cpus-per-task=" in text
    assert read - own - given == {"HEDGEROW_ENV"}
    # Slurm sets ENVIRONMENT to BATCH.
    assert "ENVIRONMENT" not in read


def test_images_and_versions_are_those_of_this_project():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    base = f"rayproject/ray:{PINNED['ray']}-py311-gpu"
    assert f"\nFROM {base}\n" in (FILES / "Dockerfile").read_text()
    aws = yaml.safe_load((FILES / "ray-aws.yaml").read_text())
    assert aws["docker"]["image"].split("/")[-1] == f"hedgerow:{version[1]}"
    assert uncommented("ray-aws.yaml", "docker:")["docker"]["image"] == base
    for spec in clusters().values():
        assert spec["rayVersion"] == PINNED["ray"]
    images = {name: [container["image"] for container in pod["spec"]["containers"]] for name, pod in pods().items()}
    assert images.pop("redis") == ["redis:7.4"]
    assert images.pop("submitter") == [base.removesuffix("-gpu")]
    assert set(map(tuple, images.values())) == {(f"registry.example.com/hedgerow:{version[1]}",)}


def test_the_image_gets_all_that_is_installed():
    copied: set[str] = set()
    for line in (FILES / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY"):
            copied |= {word for word in line.split()[1:-1] if not word.startswith("--")}
    assert set(PACKAGES) <= copied
    assert {file.name for file in ROOT.glob("*.py")} | {"pyproject.toml", "constraints.txt", "README.md"} <= copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("name", [*LAUNCHERS, *MANIFESTS, "slurm.sh", "Dockerfile"])
def test_every_file_has_its_words_in_the_docs(name):
    assert f"`{name}`" in "".join(page.read_text() for page in (ROOT / "docs").glob("cluster-*.md"))


def test_no_file_is_left_out():
    assert {file.name for file in FILES.iterdir()} == {*LAUNCHERS, *MANIFESTS, "slurm.sh", "Dockerfile"}
