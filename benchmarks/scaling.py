"""Model of a round's time, fitted to some measurements and checked against others.

    python benchmarks/scaling.py [--repeats 3]

The model is hedgerow.cluster.round_time, which `hedgerow plan` uses; its constants come from this script.

Writes benchmarks/results/scaling.json with the constants, the measurements, the predictions, the command, the
versions and the machine.
"""

import argparse
import os
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from measuring import conditions, write_results
from rounds import DIGITS, hedgerow_rounds, settings
from scipy.optimize import nnls

from hedgerow.cluster.round_time import RoundTimeModel
from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.runtime.factory import build_data

STEPS = 4
"""Local steps: mini-batches of 8 of each client's 16 samples, in two epochs."""

CONSTANTS = (
    "per round",
    "per actor",
    "per MB",
    "per actor and MB",
    "per batched step",
    "per client step",
    "per client step and 1e6 params",
)


class Case(NamedTuple):
    """An MLP 64-hidden-10 and its training set-up."""

    hidden: int
    clients: int
    actors: int

    @property
    def parameters(self) -> int:
        return 64 * self.hidden + self.hidden + self.hidden * 10 + 10

    @property
    def round(self) -> RoundTimeModel:
        return RoundTimeModel(self.parameters, self.clients, self.actors, STEPS, os.cpu_count() or 1)


FITTED = [Case(*case) for case in product((20, 200, 1600), (10, 100), (1, 2))]
CHECKED = [Case(*case) for case in ((80, 50, 2), (400, 30, 1), (400, 80, 2), (800, 60, 2), (800, 20, 1), (200, 60, 3))]


def measure(case: Case, rounds: int = 30) -> float:
    """Seconds of a steady round."""
    values = {
        **DIGITS,
        "task": {**DIGITS["task"], "model": {"name": "mlp", "hidden": [case.hidden]}},
        "participation": None,
        "clients_per_round": case.clients,
        "resources": {"executor": "ray", "actors": case.actors, "cpus_per_actor": 0.5, "threads": 1},
        "engine": {"mode": "vmap", "chunk": case.round.chunk, "compile": False},
    }
    experiment = settings(values, rounds)
    dataset, _ = build_data(experiment, None)
    clients = experiment.task.partition.draw(dataset.y_train, dataset.classes, None, 0)
    return median(hedgerow_rounds(values, dataset, clients, rounds)[0])


def fit(cases: list[Case], seconds: list[float]) -> np.ndarray:
    """Non-negative constants that minimise the relative errors."""
    rows = np.array([case.round.features for case in cases]) / np.array(seconds)[:, None]
    return nnls(rows, np.ones(len(cases)))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    cases = FITTED + CHECKED
    with ray_session():
        # In turn, so that other load on the machine affects all cases alike.
        runs = [[measure(case) for case in cases] for _ in range(arguments.repeats)]
    seconds = [median(column) for column in zip(*runs, strict=True)]
    constants = fit(FITTED, seconds[: len(FITTED)])
    table: list[dict[str, Any]] = []
    for case, measured, column in zip(cases, seconds, zip(*runs, strict=True), strict=True):
        predicted = float(constants @ case.round.features)
        table.append(
            {
                **case._asdict(),
                "fitted": case in FITTED,
                "ms": round(1e3 * measured, 2),
                "spread": [round(1e3 * min(column), 2), round(1e3 * max(column), 2)],
                "predicted ms": round(1e3 * predicted, 2),
                "error": round(predicted / measured - 1, 3),
            }
        )
    worst = max(abs(row["error"]) for row in table if not row["fitted"])
    constants_by_name = {name: float(f"{value:.3g}") for name, value in zip(CONSTANTS, constants, strict=True)}
    document = {"seconds": constants_by_name, "largest error where not fitted": worst, "cases": table}
    write_results("scaling", conditions() | document)


if __name__ == "__main__":
    main()
