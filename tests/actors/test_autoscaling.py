"""A cluster that scales: Ray's own autoscaler, which starts nodes as raylets on this machine."""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from paths import SUPPORT
from processes import free_port
from ray_clusters import BIN, environment
from ray_runs import small

from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runs.runner import run
from hedgerow.platform.tracking.tracker import RunLog

pytestmark = pytest.mark.exhaustive("processes")

WORKERS = {"min_workers": 0, "max_workers": 2, "resources": {"CPU": 1}, "node_config": {}}
LISTS = [f"{who}setup_commands" for who in ("", "head_", "worker_")]
LISTS += ["initialization_commands", "head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files"]
LISTS += ["rsync_exclude", "rsync_filter"]


@pytest.fixture(scope="module")
def scaling():
    """Address of a cluster that has a head without CPUs, and starts up to two nodes with one CPU each."""
    # Paths of sockets must be short.
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    here = psutil.net_if_addrs()
    address = next(a.address for name in here for a in here[name] if a.family == 2 and name != "lo")
    port = free_port()
    config = {
        "cluster_name": "scaling",
        "max_workers": 2,
        "upscaling_speed": 100,
        "idle_timeout_minutes": 5,
        "provider": {
            "type": "fake_multinode",
            "gcs_address": f"{address}:{port}",
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
        },
        "available_node_types": {"head": {"resources": {"CPU": 0}, "node_config": {}}, "worker": WORKERS},
        "head_node_type": "head",
        "auth": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
        **{key: [] for key in LISTS},
    }
    (folder / "config.json").write_text(json.dumps(config))
    variables = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "AUTOSCALER_HEARTBEAT_TIMEOUT_S": "120",
        "RAY_FAKE_CLUSTER": "1",
    }
    options = [
        "--head",
        "--num-cpus=0",
        f"--port={port}",
        f"--node-ip-address={address}",
        f"--temp-dir={folder}/r",
        f"--autoscaling-config={folder}/config.json",
        f"--dashboard-agent-listen-port={free_port()}",
        f"--ray-client-server-port={free_port()}",
        "--include-dashboard=false",
    ]
    with (folder / "log").open("w") as log:
        head = subprocess.Popen(
            [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *options],
            env=environment() | variables,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield f"{address}:{port}"
    finally:
        running = psutil.Process(head.pid)
        for process in [*running.children(recursive=True), running]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        head.wait()
        # The nodes that the autoscaler has started are not its children any more.
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(str(folder) in part for part in process.cmdline()):
                    process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def hedgerow(tmp_path: Path, address: str, **settings) -> subprocess.CompletedProcess:
    shutil.copy(SUPPORT / "toys.py", tmp_path)
    (tmp_path / "file.yaml").write_text(dump_experiment(small(tmp_path / "runs", **settings)))
    command = [sys.executable, "-m", "hedgerow", "run", "file.yaml", "--address", address]
    env = environment() | {"PYTHONPATH": str(tmp_path)}
    return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)


def test_a_demand_that_no_nodes_meet_is_refused_after_the_wait(scaling, tmp_path):
    settings = {"actors": 1, "cpus_per_actor": 4}
    (tmp_path / "sitecustomize.py").write_text(
        "import hedgerow.platform.actors.placement as placement\nplacement.WAIT_SECONDS = 3.0\n"
    )
    begun = time.monotonic()
    done = hedgerow(tmp_path, scaling, resources=settings)
    assert time.monotonic() > begun + 3
    assert done.returncode == 2
    assert "waiting for nodes with room for 1 client actor, up to 3 s" in done.stderr
    assert "1 client actor of 4 CPU and 0 GPU cannot be placed on this cluster, which has 0 CPUs" in done.stderr


def test_a_run_on_a_cluster_without_nodes_starts_them(scaling, tmp_path):
    settings = {"actors": 2, "cpus_per_actor": 1, "placement": "spread"}
    done = hedgerow(tmp_path, scaling, resources=settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "waiting for nodes with room for 1 client actor, up to 600 s" in done.stderr
    assert "the nodes are there after" in done.stderr
    (folder,) = (tmp_path / "runs").glob("small-*")
    alone = run(small(tmp_path / "alone", resources=settings | {"executor": "ray"}))
    assert [r | {"seconds": 0} for r in RunLog(folder / "metrics.jsonl").read()] == [
        r | {"seconds": 0} for r in alone.records
    ]
