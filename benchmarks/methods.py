"""Cost per round of FedDyn, SCAFFOLD and other methods relative to FedAvg on the same work, measured in turn.

    python benchmarks/methods.py [--repeats 5] [--only digits compiled mlp cnn]

All methods take the same number of local steps; FedAvg has no client states, and SCAFFOLD sends twice as much.
Prints the ratios and writes benchmarks/results/methods.json with the command, the versions and the machine.
"""

import argparse
from statistics import median
from typing import Any

from measuring import conditions, write_results
from rounds import CNN, DIGITS, hedgerow_rounds, noise, settings

from hedgerow.platform.runtime.factory import build_data

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 1e-4},
    "feddyn": {"alpha": 0.1},
    "scaffold": {},
    "fedsplit": {"step_size": 10.0},
}
MLP = {
    "task": {
        # Samples of MNIST's shape.
        "data": {"name": "digits"},
        "partition": {"kind": "iid", "clients": 100, "samples_per_client": 600},
        "model": {"name": "mlp", "hidden": [200, 200]},
    },
    "algorithm": {"name": "fedavg", "lr": 0.1, "epochs": 5, "batch_size": 50, "weight_decay": 1e-4, "clip_norm": 10.0},
    "participation": 0.1,
}
WORKLOADS = {
    "digits": ("digits MLP 64-200-10: 100 of 100 clients of 16, batch 8, 2 epochs", DIGITS, 60),
    "compiled": ("the same with engine: {compile: true}", DIGITS | {"engine": {"mode": "vmap", "compile": True}}, 60),
    "mlp": ("MNIST's MLP 784-200-200-10: 10 of 100 clients of 600, batch 50, 5 epochs, clipped", MLP, 12),
    "cnn": ("CIFAR CNN: 10 of 100 clients of 100, batch 50, 1 epoch", CNN, 16),
}


def measure(name: str, repeats: int) -> dict[str, Any]:
    """Seconds per steady round of each method, in turn, and their ratios to FedAvg in the same turn."""
    title, values, rounds = WORKLOADS[name]
    experiment = settings(values, rounds)
    if name in ("digits", "compiled"):
        dataset = build_data(experiment, None)[0]
    else:
        dataset = noise((1, 28, 28), 60_000, 10, 100) if name == "mlp" else noise((3, 32, 32), 10_000, 10, 100)
    clients = experiment.task.partition.draw(dataset.y_train, dataset.classes, None, experiment.seed)
    seconds: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(repeats):
        for method, own in METHODS.items():
            one = {**values, "algorithm": {**values["algorithm"], "name": method, **own}}
            spent, plans = hedgerow_rounds(one, dataset, clients, rounds)
            seconds[method].append(median(spent))
            print(f"{name} {method}: {1e3 * seconds[method][-1]:.1f} ms {plans['train/clients']}", flush=True)
    ratios = {
        method: sorted(a / b for a, b in zip(times, seconds["fedavg"], strict=True))
        for method, times in seconds.items()
    }
    return {
        "workload": title,
        "rows": {
            method: {
                "ms per round": round(1e3 * median(seconds[method]), 2),
                "times FedAvg": round(median(ratios[method]), 2),
                "spread": [round(ratios[method][0], 2), round(ratios[method][-1], 2)],
            }
            for method in METHODS
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    arguments = parser.parse_args()
    results = conditions()
    for name in arguments.only:
        results[name] = measure(name, arguments.repeats)
    write_results("methods", results)


if __name__ == "__main__":
    main()
