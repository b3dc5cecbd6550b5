"""Processor time of a round of distillation, with the teacher's outputs kept and computed for each mini-batch.

    python benchmarks/distillation.py [--rounds 8]

A student learns from a larger teacher on scikit-learn's digits, one pass per round, by KD and by DiSK with a guide of
64 hidden units. The runs take turns, round by round. Writes benchmarks/results/distillation.json.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from measuring import conditions, write_results

from hedgerow.algorithms.distillation import teacher_outputs
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.coordinator import Coordinator
from hedgerow.platform.runtime.factory import build_data
from hedgerow.platform.runtime.launch import build_coordinator

PAIRS = {
    "mlp": ({"name": "mlp", "hidden": [32]}, {"name": "mlp", "hidden": [200]}),
    "small_cnn": ({"name": "small_cnn"}, {"name": "resnet"}),
}
"""Student and teacher."""
METHODS: dict[str, dict[str, Any]] = {"kd": {}, "disk": {"guide_hidden": [64]}}


def values(student: dict[str, Any], teacher: dict[str, Any], method: str, rounds: int) -> dict[str, Any]:
    return {
        "name": "distillation",
        "rounds": rounds,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": 1},
            "model": student,
            "teacher": {"model": teacher, "epochs": 1},
        },
        "algorithm": {"name": method, "lr": 0.05, "epochs": 1, "batch_size": 32, **METHODS[method]},
        "evaluation": {"every": rounds},
        "resources": {"executor": "inline", "threads": 1},
        "checkpoints": {"every": 0},
    }


def run_of(wanted: dict[str, Any], folder: Path) -> Coordinator:
    experiment = parse_experiment(wanted)
    data = build_data(experiment, None)
    return build_coordinator([experiment], *data, [folder], parts=1)


def measure(pair: str, rounds: int) -> dict[str, float]:
    """Median processor seconds of a round without evaluation, by method and whether outputs are kept."""
    torch.set_num_threads(1)
    kinds = [(method, kept) for method in METHODS for kept in (True, False)]
    with tempfile.TemporaryDirectory(prefix="hedgerow-distillation-") as scratch:
        runs = {k: run_of(values(*PAIRS[pair], k[0], rounds + 2), Path(scratch) / f"{k[0]}-{k[1]}") for k in kinds}
        seconds: dict[tuple[str, bool], list[float]] = {kind: [] for kind in kinds}
        # The first round trains the teacher, and the last one is evaluated.
        for number in range(rounds + 1):
            for kind, run in runs.items():
                with patch.object(teacher_outputs, "MOST", teacher_outputs.MOST if kind[1] else 0):
                    begun = time.process_time()
                    run.next_round()
                    if number:
                        seconds[kind].append(time.process_time() - begun)
    return {f"{method}, {'kept' if kept else 'each'}": median(taken) for (method, kept), taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    results: dict[str, Any] = {}
    for pair, (student, teacher) in PAIRS.items():
        seconds = measure(pair, rounds)
        kept, each = (seconds[f"disk, {kind}"] / seconds[f"kd, {kind}"] for kind in ("kept", "each"))
        results[pair] = {"student": student, "teacher": teacher, "seconds": seconds, "disk_over_kd": kept}
        print(f"{pair}: DiSK {kept:.2f} times KD; computed for each mini-batch {each:.2f}; {seconds}", flush=True)
    write_results("distillation", conditions() | {"pairs": results})


if __name__ == "__main__":
    main()
