"""Time of a round of FedEx, as a ratio to the plain run that it contains, measured in alternating pairs of rounds.

    python benchmarks/fedex.py [--pairs 60] [--only loop vmap]

Both runs have the same data, the same validation samples and the same plan, in one process, and repeat their first
round. The ratio is that of the processor time of the fastest rounds, which other processes on the machine disturb
least; the median of the pairs' ratios is given, too. Prints the results and writes benchmarks/results/fedex.json with
the command, the versions, the machine and its load.
"""

import argparse
import os
import time
from typing import Any

import numpy as np
from measuring import conditions, write_results

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.coordinator import Coordinator
from hedgerow.platform.runtime.factory import check
from hedgerow.platform.runtime.launch import build_coordinator

FEDEX = {
    "factors": [
        [{"algorithm.lr": lr} for lr in (0.003, 0.01, 0.03, 0.1)],
        [{"algorithm.mu": mu} for mu in (0.01, 0.1, 1.0)],
    ]
}
"""Twelve configurations, as two distributions."""

ENGINES = {"loop": {"mode": "loop"}, "vmap": {"mode": "vmap", "chunk": 10, "compile": False}}
WARM = 5
"""Number of pairs that do not count."""


def experiment(engine: str, fedex: dict[str, Any] | None) -> Experiment:
    """FedProx on digits: 20 of 100 clients in a round, 5 epochs of batches of 8, a tenth of the samples held back."""
    return parse_experiment(
        {
            "name": "benchmark",
            "rounds": 1000,
            "participation": 0.2,
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
                "model": {"name": "mlp", "hidden": [200]},
                "validation": {"fraction": 0.1, "from": "clients"},
            },
            "algorithm": {"name": "fedprox", "lr": 0.03, "mu": 0.1, "epochs": 5, "batch_size": 8},
            "fedex": fedex,
            "engine": ENGINES[engine],
            "evaluation": {"every": 1000, "clients": 0},
            "resources": {"executor": "inline"},
            "checkpoints": {"every": 0},
            "tracking": {"enabled": False},
        }
    )


def timed(coordinator: Coordinator) -> tuple[float, float]:
    """Processor time and elapsed time of the first round, in milliseconds."""
    coordinator.servers[0].restart()
    processor, elapsed = time.process_time(), time.perf_counter()
    coordinator.next_round()
    return 1e3 * (time.process_time() - processor), 1e3 * (time.perf_counter() - elapsed)


def compare(engine: str, pairs: int) -> dict[str, Any]:
    """Ratio of FedEx to the plain run, over pairs of rounds in alternating order."""
    coordinators = {}
    for name, fedex in (("plain", None), ("fedex", FEDEX)):
        one = experiment(engine, fedex)
        coordinators[name] = build_coordinator([one], *check(one, None), [None])
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "fedex": []}
    for number in range(WARM + pairs):
        for name in ("plain", "fedex") if number % 2 == 0 else ("fedex", "plain"):
            times[name].append(timed(coordinators[name]))
    plain, fedex = (np.array(times[name][WARM:]) for name in ("plain", "fedex"))
    (processor, elapsed), (fastest_plain, fastest) = np.median(fedex / plain, 0), (plain[:, 0].min(), fedex[:, 0].min())
    return {
        "ratio of the fastest rounds": round(float(fastest / fastest_plain), 3),
        "plain, fastest, ms": round(float(fastest_plain), 2),
        "fedex, fastest, ms": round(float(fastest), 2),
        "median ratio of pairs": round(float(processor), 3),
        "median ratio of pairs, elapsed time": round(float(elapsed), 3),
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--only", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    engines = {engine: compare(engine, arguments.pairs) for engine in arguments.only}
    loads = {"start": round(load, 1), "end": round(os.getloadavg()[0], 1)}
    write_results("fedex", conditions() | {"load": loads, "engines": engines})


if __name__ == "__main__":
    main()
