"""Speed and memory of a round, as ratios to a bare PyTorch loop in the same run.

    python benchmarks/rounds.py [--repeats 5] [--only digits cnn population start]

Prints a table and writes benchmarks/results/WORKLOADS.json with the command, the versions and the machine.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from contenders.bare import one_process, two_processes
from jobs import mini_batches
from measuring import PeakMemory, conditions, write_results

from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.models.build import build_model
from hedgerow.platform.runs.runner import open_coordinator
from hedgerow.platform.runtime.factory import build_data

DIGITS = {
    "task": {
        "data": {"name": "digits", "test_fraction": 0.1},
        "partition": {"kind": "iid", "clients": 100, "samples_per_client": 16},
        "model": {"name": "mlp", "hidden": [200]},
    },
    "algorithm": {"name": "fedavg", "lr": 0.1, "epochs": 2, "batch_size": 8},
    "participation": 1.0,
}
CNN = {
    "task": {
        # Samples of CIFAR-10's shape; their values do not affect the timing.
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 100, "samples_per_client": 100},
        "model": {"name": "cnn"},
    },
    "algorithm": {"name": "fedavg", "lr": 0.01, "epochs": 1, "batch_size": 50},
    "participation": 0.1,
}


def settings(values: dict[str, Any], rounds: int) -> Any:
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


def hedgerow_rounds(values: dict[str, Any], dataset: Dataset, clients: Any, rounds: int) -> tuple[list[float], dict]:
    """Seconds of each steady round on Ray, and the plans."""
    experiment = settings(values, rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        open_coordinator(experiment, dataset, clients, Path(folder), None) as driver,
    ):
        records, done = [], False
        while not done:
            news, done = driver.advance(1.0)
            records += news
        clock = [0.0] + [record["seconds"] for record in records]
        # The first round includes the measurement of the plan, the last one the evaluation.
        return list(np.diff(clock))[1:-1], driver.plans()


def load_given(build: Any, x: torch.Tensor, y: torch.Tensor) -> tuple:
    """Load model and data for the bare loops; a module-level function, since their processes look it up by name."""
    return build(), x, y


def steady(moments: list[float]) -> float:
    """Median seconds of a round after the first."""
    return median(np.diff(moments)[1:])


def compare(name: str, values: dict[str, Any], dataset: Dataset, rounds: int, repeats: int) -> dict[str, Any]:
    """Compare Hedgerow with the bare loops on the same clients, in turn."""

    experiment = settings(values, rounds)
    clients = experiment.task.partition.draw(dataset.y_train, dataset.classes, None, experiment.seed)
    x = (torch.tensor(dataset.x_train).float() - torch.tensor(dataset.mean)) / torch.tensor(dataset.std)
    build = partial(build_model, experiment.task.model, dataset.sample_shape, dataset.classes)
    load = partial(load_given, build, x, torch.tensor(dataset.y_train))
    _, batches = mini_batches(experiment, clients)
    lr = experiment.algorithm.lr
    seconds: dict[str, list[float]] = {"bare loop": [], "bare loop, two processes": [], "hedgerow": []}
    plans: dict = {}
    for _ in range(repeats):
        seconds["bare loop"].append(steady(one_process(load, batches, lr)[0]))
        seconds["bare loop, two processes"].append(steady(two_processes(load, batches, lr)[0]))
        spent, plans = hedgerow_rounds(values, dataset, clients, rounds)
        seconds["hedgerow"].append(median(spent))
    base = seconds["hedgerow"]
    rows = {
        who: {
            "ms per round": round(1e3 * median(times), 2),
            "spread": [round(1e3 * min(times), 2), round(1e3 * max(times), 2)],
            "times hedgerow": round(median(a / b for a, b in zip(times, base, strict=True)), 2),
        }
        for who, times in seconds.items()
    }
    return {"workload": name, "rows": rows, "plan": plans["train/clients"]}


def population(size: int) -> dict[str, float]:
    """Time and peak memory of rounds of 100 of `size` clients with 10 samples each, in a separate process."""
    code = f"import rounds, json; print(json.dumps(rounds.measure_population({size})))"
    process = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    if process.returncode:
        raise RuntimeError(process.stderr)
    return json.loads(process.stdout.splitlines()[-1])


def measure_population(size: int) -> dict[str, float]:
    """Time per round, and peak memory of driver, coordinator and actors without shared data, in MB."""
    dataset = noise((1, 8, 8), 1_000_000, 10, 100)
    values = {
        **DIGITS,
        "task": {
            **DIGITS["task"],  # type: ignore[dict-item]
            "partition": {"kind": "iid", "clients": size, "samples_per_client": 10},
        },
        "participation": None,
        "clients_per_round": 100,
    }

    clients = settings(values, 1).task.partition.draw(dataset.y_train, 10, None, 0)
    with PeakMemory() as peak:
        steady, _ = hedgerow_rounds(values, dataset, clients, 40)
    return {"clients": size, "ms per round": round(1e3 * median(steady), 2), "peak MB": round(peak.megabytes)}


def time_to_first_round() -> float:
    """Seconds from the command to the report of round 1, as a user waits for it (with a warm file-system cache)."""
    root = Path(__file__).parent.parent
    with tempfile.TemporaryDirectory() as output:
        start = time.perf_counter()
        command = [sys.executable, "-m", "hedgerow", "run", str(root / "examples/digits_fedavg.yaml")]
        process = subprocess.Popen([*command, "--set", f"output={output}"], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if "round 1/" in line:
                break
        seconds = time.perf_counter() - start
        process.terminate()
        process.wait()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["digits", "cnn", "population", "start"])
    arguments = parser.parse_args()
    results = conditions()
    if "digits" in arguments.only:
        dataset = build_data(settings(DIGITS, 1), None)[0]
        name = "digits MLP 64-200-10: 100 of 100 clients of 16, batch 8, 2 epochs"
        results["digits"] = compare(name, DIGITS, dataset, 40, arguments.repeats)
    if "cnn" in arguments.only:
        name = "CIFAR CNN: 10 of 100 clients of 100, batch 50, 1 epoch"
        results["cnn"] = compare(name, CNN, noise((3, 32, 32), 10_000, 10, 100), 10, arguments.repeats)
    if "population" in arguments.only:
        pairs = [(population(1_000), population(100_000)) for _ in range(arguments.repeats)]
        results["population"] = {
            "runs": pairs,
            "time, 100,000 clients to 1,000": round(median(b["ms per round"] / a["ms per round"] for a, b in pairs), 2),
            "MB more": round(median(b["peak MB"] - a["peak MB"] for a, b in pairs)),
        }
    if "start" in arguments.only:
        results["seconds to the first round"] = [round(time_to_first_round(), 1) for _ in range(arguments.repeats)]
    write_results("-".join(arguments.only), results)


if __name__ == "__main__":
    main()
