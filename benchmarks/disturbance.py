"""A search in separate processes, and the kills that disturb it."""

import os
import random
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml
from measuring import PeakMemory

from hedgerow.platform.storage.checkpoint import checkpoints

VALUES: dict[str, Any] = {
    "name": "soak",
    "clients_per_round": 20,
    "task": {
        "data": {"name": "digits"},
        "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
        "model": {"name": "mlp", "hidden": [64]},
    },
    # Clients have states, so that losing a client actor sets its trial back to the last checkpoint.
    "algorithm": {"name": "feddyn", "alpha": 0.1, "epochs": 5, "batch_size": 8},
    # A fixed plan: a measured plan might differ in the second search.
    "engine": {"mode": "vmap", "chunk": 10, "compile": False},
    "resources": {"actors": 2, "cpus_per_actor": 0.5},
    "evaluation": {"every": 10},
    "search": {
        "kind": "hedge",
        "space": {"algorithm.lr": [0.01, 0.03, 0.1, 0.3]},
        # Deliberate kills must not exhaust the restarts.
        "restarts": 100_000,
    },
}
KINDS = {"client actor": "ray::ClientActor", "trial": "ray::ResourceTrainable", "driver": ""}
"""Kinds of processes to kill, and how their titles begin: Tune wraps a trial's class in one of its own."""

GONE = 30.0
"""Seconds within which the processes of a killed driver must be gone."""


class Search:
    """A search in separate processes, which are identified by an entry of their environment."""

    def __init__(self, home: Path, rounds: int):
        self.home, self.marker = home, f"HEDGEROW_SOAK={secrets.token_hex(8)}"
        home.mkdir()
        (home / "soak.yaml").write_text(yaml.safe_dump({**VALUES, "rounds": rounds, "output": str(home / "runs")}))
        self.log = (home / "log").open("w")
        self.driver = self._start("search", str(home / "soak.yaml"))

    @property
    def folder(self) -> Path | None:
        return next(iter((self.home / "runs").glob("soak-*")), None)

    @property
    def trained(self) -> dict[str, int]:
        """Number of recorded rounds of each expert."""
        files = sorted(self.folder.glob("experts/*/metrics.jsonl")) if self.folder else []
        return {file.parent.name: file.read_bytes().count(b"\n") for file in files}

    def resume(self) -> None:
        self.driver = self._start("resume", str(self.folder))

    def wait(self) -> None:
        """Wait until the search has ended. Raises RuntimeError with the end of its log if it failed."""
        if code := self.driver.wait():
            raise RuntimeError(f"the search ended with {code}: {(self.home / 'log').read_text()[-2000:]}")

    def at_risk(self, kind: str) -> int:
        """Largest number of rounds that run again when such a process dies.

        These are the rounds since an expert's last checkpoint and the current round; for the driver, of all experts.
        """
        assert self.folder is not None
        lost = []
        for name, trained in self.trained.items():
            saved = checkpoints(self.folder / "experts" / name / "checkpoints")
            lost.append(trained + 1 - (int(saved[-1].name.split("-")[1]) if saved else 0))
        return sum(lost) if kind == "driver" else max(lost, default=0)

    def end(self) -> None:
        """Kill all processes of the search that still exist."""
        for process in PeakMemory(marker=self.marker).members():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.log.close()

    def _start(self, *arguments: str) -> subprocess.Popen:
        name, _, value = self.marker.partition("=")
        environment = {**os.environ, name: value, "RAY_TMPDIR": str(self.home)}
        command = [sys.executable, "-m", "hedgerow", *arguments]
        # In its own session: the processes that Ray starts with a driver end with the driver's whole process group.
        return subprocess.Popen(
            command,
            cwd=self.home,
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Disturbance:
    """Kills processes of a search until it has ended, and records the kills."""

    def __init__(self, search: Search, memory: PeakMemory, every: float, minutes: float, seed: int):
        self.search, self.memory, self.every, self.seconds = search, memory, every, 60 * minutes
        self.dice = random.Random(seed)
        self.begun = time.monotonic()
        self.kills: list[dict[str, Any]] = []
        self.progress: list[tuple[float, int]] = []
        self.minutes = 0.0
        self.orphans: list[str] = []

    @property
    def now(self) -> float:
        """Minutes since the start."""
        return round((time.monotonic() - self.begun) / 60, 3)

    def carry_out(self) -> None:
        """Disturb the search until it has ended."""
        due, trained = self.every, 0
        while self.search.driver.poll() is None:
            time.sleep(0.5)
            self.progress.append((self.now, sum(self.search.trained.values())))
            # On a busy machine, it may take longer than `every` until the search trains again.
            if due <= 60 * self.now < self.seconds and self.progress[-1][1] > trained:
                trained = self.progress[-1][1]
                self._kill()
                due = 60 * self.now + self.every
        self.search.wait()
        self.minutes = self.now
        self._bury()

    def while_it_trained(self, samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Memory samples taken during training, without the first start and the closing figures."""
        most = max(rounds for _, rounds in self.progress)
        moments = [60 * minute for minute, rounds in self.progress if 0 < rounds < most]
        return [sample for sample in samples if min(moments, default=0) <= sample[0] <= max(moments, default=0)]

    def _kill(self) -> None:
        kind = self.dice.choice([kind for kind in KINDS if self._those(kind)])
        victim = self.dice.choice(self._those(kind))
        self.kills.append({"minute": self.now, "what": kind, "rounds run again, at most": self.search.at_risk(kind)})
        with suppress(psutil.NoSuchProcess):
            victim.kill()
        if kind == "driver":
            self.search.driver.wait()
            self._bury()
            if self.search.driver.returncode:
                self.search.resume()

    def _those(self, kind: str) -> list[psutil.Process]:
        if kind == "driver":
            return [psutil.Process(self.search.driver.pid)]
        return sorted((p for p in self._alive() if _title(p).startswith(KINDS[kind])), key=lambda p: p.pid)

    def _alive(self) -> list[psutil.Process]:
        """Running processes of the search."""
        return [p for p in self.memory.members() if p.is_running()]

    def _bury(self) -> None:
        """Wait for the processes of a dead driver to end; those that remain are recorded and killed."""
        _, alive = psutil.wait_procs(self._alive(), timeout=GONE)
        self.orphans += [_title(process)[:80] for process in alive]
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
