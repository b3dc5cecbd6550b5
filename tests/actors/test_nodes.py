"""On several nodes, each a raylet of its own: nodes that are lost, join, and are about to be taken."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from internals import gcs_client
from paths import SUPPORT
from processes import free_port, hedgerow
from ray_runs import small
from searches import one_after_the_other, plan

from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator, inline_executor
from hedgerow.platform.storage.checkpoint import latest_checkpoint, read_checkpoint, round_of
from hedgerow.platform.tracking.records import HedgeRecord
from hedgerow.platform.tracking.tracker import RunLog

BIN = Path(sys.executable).parent

SWIFT = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
"""A lost node is known after seconds."""

PREEMPTION = 2
"""Ray's word for the reason that a spot machine is taken."""


def until(true: Callable[[], object], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.1)


class Nodes:
    """A Ray cluster of real processes: a head without CPUs, where drivers live, and nodes of one CPU and one GPU each,
    which is only declared.
    """

    def __init__(self) -> None:
        # Paths of sockets must be short.
        self.folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        port, jobs = free_port(), free_port()
        self.address, self.jobs = f"127.0.0.1:{port}", f"http://127.0.0.1:{jobs}"
        self.processes: dict[str, subprocess.Popen] = {}
        head = {
            "port": port,
            "num-cpus": 0,
            "node-ip-address": "127.0.0.1",
            "dashboard-host": "127.0.0.1",
            "dashboard-port": jobs,
            "ray-client-server-port": free_port(),
            "system-config": json.dumps(SWIFT),
        }
        self._start("head", "--head", *(f"--{name}={value}" for name, value in head.items()))
        self.gcs = None
        until(self._reached, "the head is up")

    def add(self, name: str) -> None:
        """Start a node and wait until it is there."""
        self._start(name, f"--address={self.address}", "--num-cpus=1", "--num-gpus=1")
        until(lambda: name in self.alive(), f"{name} is up")

    def alive(self) -> dict[str, str]:
        """The ids of the nodes, by name."""
        found = self.gcs.get_all_node_info().values()
        return {info.node_name: info.node_id.hex() for info in found if info.state == 0}

    def raylets(self, name: str) -> list[psutil.Process]:
        """A node's raylet; none where the node has ended, as Ray ends one that is to be taken once it is idle."""
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(self.processes[name].pid).children(recursive=True)
            return [process for process in started if process.name() == "raylet"]
        return []

    def hosts(self, name: str, what: str) -> bool:
        """Whether such an actor's process is on a node."""
        with suppress(psutil.NoSuchProcess):
            return any(what in title(on) for raylet in self.raylets(name) for on in raylet.children(recursive=True))
        return False

    def lose(self, name: str) -> None:
        """Kill a node's raylet, and with it all that runs there."""
        (raylet,) = self.raylets(name)
        raylet.kill()
        until(lambda: name not in self.alive(), f"{name} is gone")

    def notice(self, name: str) -> None:
        """Tell Ray that a node will be taken in ten minutes."""
        deadline = int(1000 * (time.time() + 600))
        accepted, why = self.gcs.drain_node(self.alive()[name], PREEMPTION, "a notice in a test", deadline)
        assert accepted, why

    def close(self) -> None:
        for process in self.processes.values():
            # Without ceremony: a node that is stopped waits for its work to end.
            running = [psutil.Process(process.pid)] if process.poll() is None else []
            for started in [child for parent in running for child in parent.children(recursive=True)] + running:
                with suppress(psutil.NoSuchProcess):
                    started.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *arguments: str) -> None:
        # As on machines of their own.
        own = [
            f"--node-name={name}",
            f"--dashboard-agent-listen-port={free_port()}",
            f"--temp-dir={self.folder}/{name}",
        ]
        command = [str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *own, *arguments]
        with Path(self.folder, f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(command, env=environment(), stdout=log, stderr=subprocess.STDOUT)

    def _reached(self) -> bool:
        try:
            self.gcs = self.gcs or gcs_client(self.address)
            return bool(self.alive())
        except Exception:
            return False


def environment() -> dict[str, str]:
    """Of all processes of the cluster and its drivers, whatever other Ray this process has started."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled"}


def title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return "".join(process.cmdline())
    return ""


@pytest.fixture(scope="module")
def nodes():
    cluster = Nodes()
    try:
        yield cluster
    finally:
        cluster.close()


def test_nodes_are_lost_join_and_are_taken_and_the_run_has_the_same_bits(nodes, tmp_path):
    nodes.add("one")
    nodes.add("two")
    slow = tmp_path / "slow"
    slow.touch()
    settings = {
        "rounds": 500,
        "engine__mode": "loop",
        "engine__chunk": "auto",
        "algorithm__slow_file": str(slow),
        "resources": {"actors": 2, "cpus_per_actor": 0.5, "gpus_per_actor": 1, "device": "cpu"},
        # None is due: what is saved is saved for those who join and leave.
        "checkpoints__every": 1000,
        "evaluation": {"every": 100},
    }
    experiment = small(tmp_path / "runs", **settings)
    (tmp_path / "file.yaml").write_text(dump_experiment(experiment))
    with (tmp_path / "log").open("w") as log:
        driver = hedgerow(
            "run", str(tmp_path / "file.yaml"), "--address", nodes.address, env=environment(), stdout=log, stderr=log
        )

    def rounds() -> int:
        assert driver.poll() is None, (tmp_path / "log").read_text()
        return max((len(RunLog(file).read()) for file in (tmp_path / "runs").glob("*/metrics.jsonl")), default=0)

    def goes_on() -> None:
        before = rounds()
        until(lambda: rounds() > before, "the run goes on")

    def saved() -> int:
        found = [latest_checkpoint(folder) for folder in (tmp_path / "runs").glob("*/checkpoints")]
        return max((round_of(last[0]) for last in found if last), default=0)

    goes_on()
    assert nodes.hosts("one", "ray::ClientActor")
    assert nodes.hosts("two", "ray::ClientActor")
    nodes.lose("two")
    goes_on()
    nodes.add("three")
    until(lambda: nodes.hosts("three", "ray::ClientActor"), "the new node is used")
    joined = saved()
    goes_on()
    nodes.notice("one")
    until(lambda: not nodes.hosts("one", "ray::ClientActor"), "the node that is to go is left")
    assert saved() > joined
    goes_on()
    slow.unlink()
    assert driver.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    (folder,) = (tmp_path / "runs").glob("small-*")
    assert json.loads((folder / "run.json").read_text())["client_actors"] == [2, 1, 2, 1]

    data = check(experiment, None)
    calm = build_coordinator([experiment], *data, inline_executor([experiment], *data, 2), [tmp_path / "calm"])
    calm.advance(1e6)
    (learner,) = calm.servers
    records = RunLog(folder / "metrics.jsonl").read()
    assert [r | {"seconds": 0} for r in records] == [r | {"seconds": 0} for r in learner.history]
    last = latest_checkpoint(folder / "checkpoints")
    assert last is not None
    server, _ = read_checkpoint(last[0])
    assert all(np.array_equal(server["w"][name], value) for name, value in learner.state["w"].items())


SEARCH = {
    "resources": {"cpus_per_actor": 0.5, "gpus_per_actor": 0.5, "device": "cpu"},
    "search__pack": "off",
    "search__report_every": 5,
}


def hedge(output: Path) -> list[dict]:
    return [record for file in output.glob("small-*/metrics.jsonl") for record in RunLog(file, HedgeRecord).read()]


def test_a_submitted_search_uses_the_nodes(nodes, tmp_path):
    nodes.add("four")
    (tmp_path / "sent").mkdir()
    (tmp_path / "sent" / "file.yaml").write_text(plan(tmp_path / "runs", rounds=10, **SEARCH).dump())
    shutil.copy(SUPPORT / "toys.py", tmp_path / "sent")
    command = [sys.executable, "-m", "hedgerow", "submit", "search", "file.yaml", "--address", nodes.jobs]
    done = subprocess.run(command, cwd=tmp_path / "sent", env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert hedge(tmp_path / "runs") == one_after_the_other(plan(tmp_path / "alone", rounds=10, **SEARCH))


def test_a_search_goes_on_where_there_is_room_when_a_node_is_lost(nodes, tmp_path):
    # Beside one that another test leaves.
    nodes.add("five")
    slow = tmp_path / "slow"
    slow.touch()
    settings = {"rounds": 60, "algorithm__slow_file": str(slow), **SEARCH}
    (tmp_path / "file.yaml").write_text(plan(tmp_path / "runs", **settings).dump())
    with (tmp_path / "log").open("w") as log:
        driver = hedgerow(
            "search", str(tmp_path / "file.yaml"), "--address", nodes.address, env=environment(), stdout=log, stderr=log
        )

    def begun() -> bool:
        assert driver.poll() is None, (tmp_path / "log").read_text()
        return len(hedge(tmp_path / "runs")) >= 5

    until(begun, "Hedge has rounds")
    nodes.lose(next(name for name in nodes.alive() if name != "head" and nodes.hosts(name, "ray::ResourceTrainable")))
    slow.unlink()
    expected = one_after_the_other(plan(tmp_path / "alone", **settings))
    assert driver.wait(timeout=200) == 0, (tmp_path / "log").read_text()
    assert hedge(tmp_path / "runs") == expected
