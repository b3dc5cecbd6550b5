"""Shared code of the benchmarks: the recorded conditions, and the measurement of memory."""

import json
import os
import platform
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
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


def small_steps(
    algorithm: dict[str, Any], rounds: int, cohort: int, clients: int, resources: dict[str, Any], output: str = "runs"
) -> Experiment:
    """An experiment on Ray whose client steps compute almost nothing, so that many actors fit on few cores."""
    return parse_experiment(
        {
            "name": "small-steps",
            "output": output,
            "rounds": rounds,
            "clients_per_round": cohort,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": clients},
                "model": {"name": "logreg"},
            },
            "algorithm": algorithm,
            "evaluation": {"every": 10_000, "clients": 0},
            "checkpoints": {"every": 0},
            "tracking": {"enabled": False},
            "engine": {"mode": "loop"},
            "resources": {"executor": "ray", "cpus_per_actor": 0.1, **resources},
        }
    )


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
