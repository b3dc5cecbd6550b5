"""Time of a round with slots, as a ratio to the same round without them, measured in alternating pairs of rounds.

    python benchmarks/slots.py [--pairs 20] [--only digits small_cnn cnn] [--data-root FOLDER]

All runs have the same data and the same plan, in one process, and repeat their first round. The ratio is that of the
processor time of the fastest rounds, which other processes on the machine disturb least; the median of the pairs'
ratios is given, too. Prints the results and writes benchmarks/results/slots.json with the command, the versions, the
machine and its load.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from measuring import conditions, write_results

from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.coordinator import Coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator

CLIP = {"kind": "clip", "norm": 1.0}
PIPELINES: dict[str, dict[str, Any]] = {
    "empty": {"transforms": []},
    "clip": {"transforms": [CLIP]},
    "clip and noise": {"transforms": [CLIP, {"kind": "gaussian_noise", "multiplier": 0.1}]},
    "top_k": {"transforms": [{"kind": "top_k", "entries": 1000}]},
    "quantize": {"transforms": [{"kind": "quantize", "bits": 8}]},
    "median": {"aggregation": {"rule": {"kind": "median"}}},
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "digits": {
        "participation": 0.2,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
            "model": {"name": "mlp", "hidden": [200]},
        },
        "algorithm": {"name": "fedavg", "lr": 0.1, "epochs": 5, "batch_size": 8},
        "engine": {"mode": "vmap", "chunk": 10, "compile": False},
    },
    "small_cnn": {
        "participation": 0.2,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 50, "samples_per_client": 25},
            "model": {"name": "small_cnn"},
        },
        "algorithm": {"name": "fedavg", "lr": 0.1, "epochs": 2, "batch_size": 5},
        "engine": {"mode": "loop"},
    },
    # FedDyn's network, on CIFAR-10 as a folder of images in a zip file; needs --data-root.
    "cnn": {
        "participation": 0.05,
        "task": {
            "data": {"name": "image_folder", "path": "cifar10_imagefolder.zip"},
            "partition": {"kind": "iid", "clients": 100, "samples_per_client": 100},
            "model": {"name": "cnn"},
        },
        "algorithm": {"name": "fedavg", "lr": 0.1, "epochs": 2, "batch_size": 50},
        "engine": {"mode": "loop"},
    },
}
WARM = 3
"""Number of pairs that do not count."""


def coordinator_of(workload: str, slots: dict[str, Any], root: Path | None) -> Coordinator:
    """A run that is ready for its first round."""
    values = {
        "name": "benchmark",
        "rounds": 1000,
        "evaluation": {"every": 1000, "clients": 0},
        "resources": {"executor": "inline"},
        "checkpoints": {"every": 0},
        "tracking": {"enabled": False},
    }
    experiment = parse_experiment(values | WORKLOADS[workload] | slots)
    return build_coordinator([experiment], *check(experiment, root), [None])


def timed(coordinator: Coordinator) -> float:
    """Processor time of the first round, in milliseconds."""
    coordinator.servers[0].restart()
    start = time.process_time()
    coordinator.next_round()
    return 1e3 * (time.process_time() - start)


def compare(workload: str, slots: dict[str, Any], pairs: int, root: Path | None) -> dict[str, Any]:
    """Ratio of a run with slots to the plain run, over pairs of rounds in alternating order."""
    runs = {"plain": coordinator_of(workload, {}, root), "slots": coordinator_of(workload, slots, root)}
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(WARM + pairs):
        for name in list(runs)[:: -1 if number % 2 else 1]:
            times[name].append(timed(runs[name]))
    plain, slotted = (np.array(times[name][WARM:]) for name in runs)
    return {
        "ratio of the fastest rounds": round(float(slotted.min() / plain.min()), 3),
        "median ratio of pairs": round(float(np.median(slotted / plain)), 3),
        "plain, fastest, ms": round(float(plain.min()), 2),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=["digits", "small_cnn"])
    parser.add_argument("--data-root", type=Path)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    root, results = arguments.data_root, {}
    for workload in arguments.only:
        results[workload] = {name: compare(workload, slots, arguments.pairs, root) for name, slots in PIPELINES.items()}
    loads = {"start": round(load, 1), "end": round(os.getloadavg()[0], 1)}
    write_results("slots", conditions() | {"load": loads, "workloads": results})


if __name__ == "__main__":
    main()
