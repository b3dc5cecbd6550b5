"""Shared code of the benchmarks: the recorded conditions, experiments and data, and the measurement of memory."""

import json
import os
import platform
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.tracking.run_folder import git_commit, versions

RESULTS = Path(__file__).parent / "results"


def conditions() -> dict[str, Any]:
    """Command, versions and machine; folders appear only by name."""
    arguments = [Path(part).name if Path(part).is_dir() else part for part in sys.argv[1:]]
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments]),
        "versions": versions(),
        "commit": git_commit(),
        "cpu": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
    }


def write_results(name: str, results: dict[str, Any]) -> None:
    """Print the results and write them to results/NAME.json."""
    text = json.dumps(results, indent=2)
    print(text)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(text + "\n")


def settings(values: dict[str, Any], rounds: int) -> Experiment:
    """An experiment on two single-threaded actors that evaluates only once, after its last round."""
    return parse_experiment(
        {
            "name": "benchmark",
            "rounds": rounds,
            "evaluation": {"every": 10**6, "clients": 0},
            "resources": {"executor": "ray", "actors": 2, "threads": 1},
            "checkpoints": {"every": 0},
            "tracking": {"enabled": False},
            **values,
        }
    )


def noise(shape: tuple[int, ...], samples: int, classes: int, test: int) -> Dataset:
    """Data set of random uint8 images."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples + test, *shape), dtype=np.uint8)
    y = rng.integers(0, classes, samples + test)
    mean, std = np.full((shape[0], 1, 1), 127.5, np.float32), np.full((shape[0], 1, 1), 64, np.float32)
    names = tuple(map(str, range(classes)))
    return Dataset("noise", x[:samples], y[:samples], x[samples:], y[samples:], classes, mean, std, names)


def _own_memory(pid: int, otherwise: int) -> int:
    """Anonymous memory of a process in bytes, where what forked processes share is divided among them.

    otherwise: the answer where the kernel does not say.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return 1024 * int(line.split()[1])
    return otherwise


class PeakMemory:
    """Peak memory of this process and its descendants together, in MB, without memory that they share.

    marker: an environment entry "NAME=VALUE"; if given, all processes that have it count instead, including those that
    leave their parent, as Ray's do. shared: largest shared memory (Ray's object store, libraries) that one of them had
    mapped, in MB. samples: pairs of seconds since the start and MB held.
    """

    def __init__(self, every: float = 0.2, marker: str | None = None):
        self.every, self.root = every, psutil.Process()
        self.megabytes = self.shared = 0.0
        self.samples: list[tuple[float, float]] = []
        self.name, _, self.value = (marker or "").partition("=")
        self._marked: dict[psutil.Process, bool] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        start = time.monotonic()
        while not self._stop.wait(self.every):
            used = 0.0
            for process in self.members():
                with suppress(psutil.Error):
                    memory = process.memory_info()
                    used += _own_memory(process.pid, memory.rss - memory.shared)
                    self.shared = max(self.shared, memory.shared / 1e6)
            self.megabytes = max(self.megabytes, used / 1e6)
            self.samples.append((time.monotonic() - start, used / 1e6))

    def members(self) -> set[psutil.Process]:
        """Processes that currently count."""
        if self.name:
            return {process for process in psutil.process_iter() if self._is_marked(process)}
        members = {self.root}
        with suppress(psutil.Error):
            members.update(self.root.children(recursive=True))
        return members

    def _is_marked(self, process: psutil.Process) -> bool:
        """Checked once per process, since reading an environment from the system takes time."""
        if process not in self._marked:
            marked = False
            with suppress(psutil.Error):
                marked = process.environ().get(self.name) == self.value
            self._marked[process] = marked
        return self._marked[process]
