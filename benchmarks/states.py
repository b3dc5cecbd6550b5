"""Time per round with client states as the population grows to a million, and where the states are stored.

    python benchmarks/states.py [--repeats 3] [--rounds 40] [--only population disk]

population: 1000 clients per round out of 1e3, 1e4, 1e5 and 1e6, in turn. disk: 5e4 clients for 200 rounds, after which
nearly every client's state has been written, and is read back.

Prints a table and writes benchmarks/results/states.json with the command, the versions and the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
from measuring import PeakMemory, conditions, noise, settings, write_results

from hedgerow.platform.data import Partition
from hedgerow.platform.runs.runner import open_coordinator

COHORT = 1000

VALUES = {
    "task": {
        # Images of 8 x 8 pixels; their values do not affect the timing.
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": COHORT},
        "model": {"name": "mlp", "hidden": [200]},
    },
    "algorithm": {"name": "feddyn", "alpha": 0.1, "lr": 0.05, "epochs": 1, "batch_size": 5},
    "clients_per_round": COHORT,
    # Fixed for all populations: their shares of a round differ by a few clients, and separate measurements might
    # choose different plans.
    "engine": {"mode": "vmap", "chunk": 64},
}


def shared_samples(population: int, samples: int) -> Partition:
    """Two to ten samples per client, which all clients draw from the same few."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 11, population)
    return Partition(rng.integers(0, samples, sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]), sizes)


def cpu_seconds() -> float:
    """CPU seconds that the descendants of this process have used so far, in user and kernel mode."""
    times = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return sum(time.user + time.system for time in times)


def measure(population: int, rounds: int) -> dict[str, Any]:
    """One run: the time of its rounds, and the memory of driver, coordinator and actors."""
    dataset, clients = noise((1, 8, 8), 10_000, 10, 100), shared_samples(population, 10_000)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        resources = {"executor": "ray", "actors": 2, "threads": 1}
        # The run is abandoned before its last round, which evaluates and saves.
        experiment = settings({**VALUES, "resources": resources}, 10**6)
        records: list[dict] = []
        with (
            PeakMemory() as peak,
            open_coordinator(experiment, dataset, clients, Path(folder), None) as driver,
        ):
            records += driver.advance(1.0)[0]
            first, used = len(records), cpu_seconds()
            while len(records) < rounds:
                records += driver.advance(1.0)[0]
            used = (cpu_seconds() - used) / max(1, len(records) - first)
    # The first round is a warm-up and is left out.
    steady = 1e3 * np.diff([record["seconds"] for record in records])
    tenth = max(1, len(steady) // 10)
    return {
        "clients": population,
        "ms per round": round(float(np.median(steady)), 1),
        "ms, first and last tenth": [round(float(np.median(part)), 1) for part in (steady[:tenth], steady[-tenth:])],
        "CPU ms per round": round(1e3 * used, 1),
        "peak MB": round(peak.megabytes),
        "peak MB of shared memory": round(peak.shared),
    }


def touch_memory(most: float = 16e9) -> None:
    """Use memory once, since its first use is slow and not a cost of client states.

    A virtual machine may get each page from its host on first use, which takes 20 times as long as the machine's own
    part in it.
    """
    np.ones(int(min(most, 0.8 * psutil.virtual_memory().available)), np.uint8)


def apart(population: int, rounds: int) -> dict[str, Any]:
    """`measure` in a separate process."""
    code = f"import states, json; print(json.dumps(states.measure({population}, {rounds})))"
    process = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr)
    print(process.stdout.splitlines()[-1], flush=True)
    return json.loads(process.stdout.splitlines()[-1])


def compare(runs: list[list[dict]], key: str) -> dict[str, Any]:
    """Median and spread of a figure per population, and its ratio to the first population in the same repeat."""
    columns = [[row[key] for row in column] for column in zip(*runs, strict=True)]
    return {
        str(runs[0][i]["clients"]): {
            "median": median(values),
            "spread": [min(values), max(values)],
            "to the first": round(median(b / a for a, b in zip(columns[0], values, strict=True)), 2),
        }
        for i, values in enumerate(columns)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--only", nargs="+", default=["population", "disk"])
    arguments = parser.parse_args()
    results = conditions()
    touch_memory()
    if "population" in arguments.only:
        populations = (1_000, 10_000, 100_000, 1_000_000)
        runs = [[apart(size, arguments.rounds) for size in populations] for _ in range(arguments.repeats)]
        results["population"] = {
            "runs": runs,
            **{key: compare(runs, key) for key in ("ms per round", "CPU ms per round")},
            "peak MB": {size: max(run[i]["peak MB"] for run in runs) for i, size in enumerate(populations)},
        }
    if "disk" in arguments.only:
        results["disk"] = apart(50_000, 200)
    write_results("states", results)


if __name__ == "__main__":
    main()
