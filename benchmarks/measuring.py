"""What every benchmark writes down, and how it weighs memory."""

import json
import os
import platform
import sys
import threading
from pathlib import Path
from typing import Any

import psutil

from hedgerow.platform.runs import git_commit, versions

RESULTS = Path(__file__).parent / "results"


def conditions() -> dict[str, Any]:
    """The command, the versions and the machine."""
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
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


class PeakMemory:
    """The most memory that this process and its children held at once, in MB; what they share is not counted.

    shared: the most that one of them had mapped of what they share (Ray's object store, libraries), in MB.
    """

    def __init__(self, every: float = 0.2):
        self.every, self.megabytes, self.shared = every, 0.0, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(self.every):
            used = 0.0
            for process in [me, *me.children(recursive=True)]:
                try:
                    memory = process.memory_info()
                    used += memory.rss - memory.shared
                    self.shared = max(self.shared, memory.shared / 1e6)
                except psutil.Error:
                    continue
            self.megabytes = max(self.megabytes, used / 1e6)
