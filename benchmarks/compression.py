"""Accuracy against bytes sent by the clients, for transforms that compress at several ratios.

    python benchmarks/compression.py [--rounds 40] [--seeds 3]

FedAvg on scikit-learn's digits, 100 clients with Dirichlet(0.3) labels, 20 of them per round, and an MLP with 50 hidden
units, the same for every transform. Nothing is tuned. The sketch has no server momentum, as the others. The bytes are
those of the run's ledger, of all clients and rounds. The accuracy is the mean of the last three evaluations on the test
set, one every fifth round.

Prints the results, and writes benchmarks/results/compression.json and compression.png.
"""

import argparse
import tempfile
from statistics import mean, stdev
from typing import Any

from measuring import RESULTS, conditions, write_results

import hedgerow
from hedgerow.platform.ui.plotting import COLOURS, new_figure, save, tidy

NUMBERS = 50 * 64 + 50 + 10 * 50 + 10
"""Parameters of the MLP."""
LAST = 3
"""Number of evaluations whose accuracies are averaged."""


def kept(percent: float) -> int:
    """Number of entries of the MLP."""
    return max(1, round(NUMBERS * percent / 100))


PERCENT = (1, 2, 5, 10, 20)
CURVES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "none": {"all": []},
    "top-k with error feedback": {f"{p} %": [{"kind": "top_k", "entries": kept(p)}] for p in PERCENT},
    "top-k": {f"{p} %": [{"kind": "top_k", "entries": kept(p), "error_feedback": False}] for p in PERCENT},
    "random-k": {f"{p} %": [{"kind": "random_k", "entries": kept(p)}] for p in PERCENT},
    "quantize": {f"{b} bits": [{"kind": "quantize", "bits": b}] for b in (1, 2, 4, 8)},
    "sketch": {
        f"5 x {c}": [{"kind": "sketch", "rows": 5, "columns": c, "entries": kept(1), "server_momentum": 0.0}]
        for c in (100, 200, 400, 700)
    },
}


def one_run(transforms: list[dict[str, Any]], rounds: int, seed: int) -> dict[str, float]:
    """Megabytes sent by clients, and accuracy at the end."""
    with tempfile.TemporaryDirectory() as output:
        run = hedgerow.run(
            {
                "name": "compression",
                "output": output,
                "seed": seed,
                "rounds": rounds,
                "participation": 0.2,
                "task": {
                    "data": {"name": "digits"},
                    "partition": {"kind": "dirichlet", "clients": 100, "alpha": 0.3},
                    "model": {"name": "mlp", "hidden": [50]},
                },
                "algorithm": {"name": "fedavg", "lr": 0.1, "epochs": 2, "batch_size": 8},
                "aggregation": {"weighting": "uniform"},
                "transforms": transforms,
                "evaluation": {"clients": 0, "every": 5},
                "checkpoints": {"every": 0},
                "tracking": {"enabled": False},
                "resources": {"executor": "inline"},
            },
            show=False,
        )
    accuracies = [record["test_accuracy"] for record in run.records if "test_accuracy" in record]
    return {"mb_up": sum(r["bytes_up"] for r in run.records) / 1e6, "accuracy": mean(accuracies[-LAST:])}


def measure(transforms: list[dict[str, Any]], rounds: int, seeds: int) -> dict[str, float]:
    """Mean and standard deviation over seeds."""
    runs = [one_run(transforms, rounds, seed) for seed in range(seeds)]
    accuracies = [run["accuracy"] for run in runs]
    return {
        "mb_up": mean(run["mb_up"] for run in runs),
        "accuracy": mean(accuracies),
        "accuracy_sd": stdev(accuracies) if seeds > 1 else 0.0,
    }


def draw(curves: dict[str, dict[str, dict[str, float]]]) -> None:
    """Accuracy against bytes: one line for each transform, one point for each ratio."""
    figure = new_figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for (name, points), colour in zip(curves.items(), COLOURS, strict=False):
        x, y = ([100 * p["accuracy"] if key == "accuracy" else p["mb_up"] for p in points.values()] for key in KEYS)
        error = [100 * p["accuracy_sd"] for p in points.values()]
        axes.errorbar(x, y, error, marker="o", markersize=4, capsize=2, color=colour, label=name)
        for ratio, right, up in zip(points, x, y, strict=True):
            axes.annotate(ratio, (right, up), (4, -10), textcoords="offset points", fontsize="x-small", color=colour)
    axes.set(xscale="log", xlabel="megabytes sent by clients, whole run", ylabel="test accuracy at the end, %")
    tidy(axes)
    figure.legend(frameon=False, loc="outside right upper")
    save(figure, RESULTS / "compression")
    (RESULTS / "compression.svg").unlink()


KEYS = ("mb_up", "accuracy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    curves = {
        name: {ratio: measure(transforms, chosen.rounds, chosen.seeds) for ratio, transforms in ratios.items()}
        for name, ratios in CURVES.items()
    }
    write_results("compression", {**conditions(), "rounds": chosen.rounds, "seeds": chosen.seeds, "curves": curves})
    draw(curves)


if __name__ == "__main__":
    main()
