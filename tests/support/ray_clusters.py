"""Clusters of Ray for tests: each node is a raylet of its own on this machine."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from internals import gcs_client
from processes import free_port

from hedgerow.platform.common.ray_private import REACHABLE

BIN = Path(sys.executable).parent

SWIFT = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 3}
"""A lost node is known after seconds."""

ATTEMPTS = 3
"""Times that a node is started before a test fails."""

PREEMPTION = 2
"""Ray's word for the reason that a spot machine is taken."""


def until(true: Callable[[], object], what: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"after {seconds:g} s still not: {what}"
        time.sleep(0.1)


class Nodes:
    """A Ray cluster of real processes: a head without CPUs, where drivers live, and nodes of one CPU each, and one GPU,
    which is only declared, or none.

    system: Ray's own settings.
    """

    def __init__(self, system: dict[str, int] = SWIFT) -> None:
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
            "system-config": json.dumps(system),
        }
        self._start("head", "--head", *(f"--{name}={value}" for name, value in head.items()))
        self.gcs = None
        until(self._reached, "the head is up")

    def add(self, name: str, *, gpus: int = 1, hides: Path | None = None, **variables: str) -> None:
        """Start a node and wait until it is there.

        variables: its environment variables. hides: folder in whose place the node sees an empty one, see `can_hide`.
        """
        before = (
            ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{hides}" && exec "$@"', "sh"] if hides else []
        )
        options = f"--address={self.address}", "--num-cpus=1", f"--num-gpus={gpus}"
        for attempt in range(1, ATTEMPTS + 1):
            self._start(name, *options, before=before, **variables)
            try:
                until(lambda: name in self.alive() or self.processes[name].poll() is not None, f"{name} is up", 60)
                assert name in self.alive(), f"{name} has ended"
                return
            except AssertionError as error:
                # Another process may have taken one of its ports in between.
                self._kill(self.processes.pop(name))
                if attempt == ATTEMPTS:
                    raise AssertionError(f"{error}\n{self._log(name).read_text()}") from None

    def alive(self) -> dict[str, str]:
        """The ids of the nodes, by name."""
        found = self.gcs.get_all_node_info().values()
        return {info.node_name: info.node_id.hex() for info in found if info.state == 0}

    def raylets(self, name: str) -> list[psutil.Process]:
        """A node's raylet; none where the node has ended, as Ray ends one that is to be taken once it is idle."""
        with suppress(psutil.NoSuchProcess):
            started = psutil.Process(self.processes[name].pid).children(recursive=True)
            return [process for process in started if title(process).split("\0")[0].endswith("/raylet")]
        return []

    def hosts(self, name: str, what: str) -> list[psutil.Process]:
        """Processes of such actors on a node."""
        with suppress(psutil.NoSuchProcess):
            started = [on for raylet in self.raylets(name) for on in raylet.children(recursive=True)]
            return [process for process in started if what in title(process)]
        return []

    def lose(self, name: str) -> None:
        """Kill a node's raylet, and with it all that runs there."""
        (raylet,) = self.raylets(name)
        raylet.kill()
        until(lambda: name not in self.alive(), f"{name} is gone")

    def stall(self, seconds: float) -> None:
        """Freeze the control store on the head, as if the network to it were gone."""
        (server,) = (
            child
            for child in psutil.Process(self.processes["head"].pid).children(recursive=True)
            if child.name() == "gcs_server"
        )
        server.suspend()
        time.sleep(seconds)
        server.resume()

    def notice(self, name: str) -> None:
        """Tell Ray that a node will be taken in ten minutes."""
        deadline = int(1000 * (time.time() + 600))
        accepted, why = self.gcs.drain_node(self.alive()[name], PREEMPTION, "a notice in a test", deadline)
        assert accepted, why

    def close(self) -> None:
        for process in self.processes.values():
            self._kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _kill(self, process: subprocess.Popen) -> None:
        # Without ceremony: a node that is stopped waits for its work to end.
        running = [psutil.Process(process.pid)] if process.poll() is None else []
        for started in [child for parent in running for child in parent.children(recursive=True)] + running:
            with suppress(psutil.NoSuchProcess):
                started.kill()
        process.wait()

    def _log(self, name: str) -> Path:
        return Path(self.folder, f"{name}.log")

    def _start(self, name: str, *arguments: str, before: Sequence[str] = (), **variables: str) -> None:
        # As on machines of their own.
        names = [
            f"--node-name={name}",
            f"--dashboard-agent-listen-port={free_port()}",
            f"--temp-dir={self.folder}/{name}",
        ]
        command = [*before, str(BIN / "ray"), "start", "--block", "--disable-usage-stats", *names, *arguments]
        with self._log(name).open("w") as log:
            own = environment() | variables
            self.processes[name] = subprocess.Popen(command, env=own, stdout=log, stderr=subprocess.STDOUT)

    def _reached(self) -> bool:
        try:
            self.gcs = self.gcs or gcs_client(self.address)
            return bool(self.alive())
        except Exception:
            return False


def can_hide() -> bool:
    """Whether this process may give others mounts of their own, as root on Linux."""
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", tempfile.gettempdir()]
    return subprocess.run(command, capture_output=True).returncode == 0


def environment() -> dict[str, str]:
    """Of all processes of the cluster and its drivers, whatever other Ray this process has started."""
    mine = {name: value for name, value in os.environ.items() if name != REACHABLE}
    return {**mine, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "RAY_AUTH_MODE": "disabled"}


def title(process: psutil.Process) -> str:
    """Command line of a process; empty if it has ended."""
    with suppress(psutil.Error):
        return "\0".join(process.cmdline())
    return ""
