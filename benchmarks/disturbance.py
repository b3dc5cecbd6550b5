"""A search in processes of its own, and the kills that disturb it."""

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
    # Its clients have states, so that a lost client actor sends its trial back to the last checkpoint.
    "algorithm": {"name": "feddyn", "alpha": 0.1, "epochs": 5, "batch_size": 8},
    # The same step everywhere: a plan that is measured might be another one in the second search.
    "engine": {"mode": "vmap", "chunk": 10, "compile": False},
    "resources": {"actors": 2, "cpus_per_actor": 0.5},
    "evaluation": {"every": 10},
    "search": {
        "kind": "hedge",
        "space": {"algorithm.lr": [0.01, 0.03, 0.1, 0.3]},
        # Whoever is killed on purpose must not run out of restarts.
        "restarts": 100_000,
    },
}
KINDS = {"client actor": "ray::ClientActor", "trial": "ray::ResourceTrainable", "driver": ""}
"""What is killed, and how its process is called: Tune wraps a trial's class into one of its own."""

GONE = 30.0
"""Seconds until the processes of a driver that was killed are to be gone."""


class Search:
    """A search in processes of their own, which can be found by an entry of their environment."""

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
        """Rounds of each expert that are written down."""
        files = sorted(self.folder.glob("experts/*/metrics.jsonl")) if self.folder else []
        return {file.parent.name: file.read_bytes().count(b"\n") for file in files}

    def resume(self) -> None:
        self.driver = self._start("resume", str(self.folder))

    def wait(self) -> None:
        """Until it has ended. Raises RuntimeError with its last words where it failed."""
        if code := self.driver.wait():
            raise RuntimeError(f"the search ended with {code}: {(self.home / 'log').read_text()[-2000:]}")

    def at_risk(self, kind: str) -> int:
        """Rounds that are run again at most when such a process dies: those since an expert's last checkpoint, and the
        one at hand; of all experts, if it is the driver."""
        assert self.folder is not None
        lost = []
        for name, trained in self.trained.items():
            saved = checkpoints(self.folder / "experts" / name / "checkpoints")
            lost.append(trained + 1 - (int(saved[-1].name.split("-")[1]) if saved else 0))
        return sum(lost) if kind == "driver" else max(lost, default=0)

    def end(self) -> None:
        """Whatever of it is still there."""
        for process in PeakMemory(marker=self.marker).members():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.log.close()

    def _start(self, *arguments: str) -> subprocess.Popen:
        name, _, value = self.marker.partition("=")
        environment = {**os.environ, name: value, "RAY_TMPDIR": str(self.home)}
        command = [sys.executable, "-m", "hedgerow", *arguments]
        # In a session of its own: what Ray starts with a driver ends with all of the driver's process group.
        return subprocess.Popen(
            command,
            cwd=self.home,
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Disturbance:
    """Kills processes of a search until it is over, and writes down what it did."""

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
        """Minutes since it began."""
        return round((time.monotonic() - self.begun) / 60, 3)

    def carry_out(self) -> None:
        """Until the search has come to its end."""
        due, trained = self.every, 0
        while self.search.driver.poll() is None:
            time.sleep(0.5)
            self.progress.append((self.now, sum(self.search.trained.values())))
            # On a busy machine it may take longer than that until it trains again.
            if due <= 60 * self.now < self.seconds and self.progress[-1][1] > trained:
                trained = self.progress[-1][1]
                self._kill()
                due = 60 * self.now + self.every
        self.search.wait()
        self.minutes = self.now
        self._bury()

    def while_it_trained(self, samples: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """Those samples of memory: not those of the first start and of the closing figures."""
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
        """The search's processes."""
        return [p for p in self.memory.members() if p.is_running()]

    def _bury(self) -> None:
        """Wait for what a driver that is gone leaves behind; what stays is written down, and ended."""
        _, alive = psutil.wait_procs(self._alive(), timeout=GONE)
        self.orphans += [_title(process)[:80] for process in alive]
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _title(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
