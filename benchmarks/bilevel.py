"""Cost of a FedBiO round relative to a bare evaluation of its derivatives.

    python benchmarks/bilevel.py [--repeats 5] [--rounds 40]

A round: 10 clients under vmap in this process, 5 local steps on three variables, including drawing mini-batches,
keeping states and ledger, and averaging variables. Bare: the same derivatives of the same numbers of samples under one
vmap, with the mini-batches already in memory and the results discarded. Writes benchmarks/results/bilevel.json.
"""

import argparse
import time
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from measuring import conditions, write_results

from hedgerow.algorithms.bilevel.derivatives import Derivatives, MiniBatch
from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import tree_map
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.runtime.factory import build_algorithms, build_data
from hedgerow.platform.runtime.launch import build_coordinator

CLIENTS, STEPS, BATCH = 10, 5, 32
MODELS = {"logreg": {"name": "logreg"}, "mlp": {"name": "mlp", "hidden": [200]}, "cnn": {"name": "small_cnn"}}


def values(model: str, share: bool, rounds: int) -> dict[str, Any]:
    return {
        "name": "bilevel",
        "rounds": rounds,
        "participation": 1.0,
        "task": {
            "data": {"name": "digits"},
            "partition": {"kind": "iid", "clients": CLIENTS, "validation": 0.25, "label_noise": 0.4},
            "model": MODELS[model],
            "problem": {"kind": "cleaning"},
        },
        "algorithm": {
            "name": "fedbio",
            **{"lr": 0.1, "u_lr": 0.1, "upper_lr": 10.0, "steps": STEPS, "batch_size": BATCH, "share_batches": share},
        },
        "evaluation": {"every": rounds, "clients": 0},
        "resources": {"executor": "inline", "threads": 1},
        "engine": {"mode": "vmap", "chunk": CLIENTS},
    }


def rounds_of(wanted: dict[str, Any], folder: Any) -> float:
    """Seconds of a steady round."""
    experiment = parse_experiment(wanted)
    dataset, partition = build_data(experiment, None)
    run = build_coordinator([experiment], dataset, partition, [folder])
    ends = [run.next_round()[0]["seconds"] for _ in range(experiment.rounds - 1)]
    return median(b - a for a, b in pairwise(ends[2:]))


def bare(wanted: dict[str, Any], rounds: int) -> float:
    """Seconds of a round's derivatives."""
    experiment = parse_experiment(wanted)
    dataset, partition = build_data(experiment, None)
    algorithm = build_algorithms([experiment], dataset, partition)[0]
    hp, z = experiment.algorithm.at(1), algorithm.init_server()
    x = algorithm.task.prepare(torch.from_numpy(dataset.x_train))
    y = torch.from_numpy(dataset.y_train)
    share = experiment.algorithm.share_batches
    names = ["upper", "lower"] if share else ["upper", "lower", "cross", "hessian"]
    rows = {name: torch.randint(0, len(y), (CLIENTS, BATCH)) for name in names}
    xs, ys = ({name: t[some] for name, some in rows.items()} for t in (x, y))
    mask = torch.ones(CLIENTS, BATCH)

    def one(rows: Any, xs: Any, ys: Any, mask: Any, z: Any) -> Any:
        batches = {name: Batch(xs[name], ys[name], mask, rows=rows[name]) for name in names}
        lower = batches["lower"]
        draw = MiniBatch(batches["upper"], lower, batches.get("cross", lower), (batches.get("hessian", lower),))
        return Derivatives(algorithm.task, hp).directions(z, draw)

    # After the first step, every client has its own variables.
    apart = tree_map(lambda leaf: leaf.expand(CLIENTS, *leaf.shape).clone(), z)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        for step in range(STEPS):
            torch.func.vmap(one, in_dims=(0, 0, 0, 0, 0 if step else None))(rows, xs, ys, mask, apart if step else z)
        seconds.append(time.perf_counter() - start)
    return median(seconds[2:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Any] = {}
    for model in MODELS:
        for share in (True, False):
            settings = values(model, share, arguments.rounds)
            pairs = [(rounds_of(settings, None), bare(settings, arguments.rounds)) for _ in range(arguments.repeats)]
            ratios = sorted(whole / alone for whole, alone in pairs)
            rows[f"{model}, {'one batch' if share else 'independent batches'} per step"] = {
                "ms per round": round(1e3 * median(whole for whole, _ in pairs), 2),
                "ms of its derivatives": round(1e3 * median(alone for _, alone in pairs), 2),
                "ratio": round(median(ratios), 2),
                "spread": [round(ratios[0], 2), round(ratios[-1], 2)],
            }
    write_results("bilevel", conditions() | {"rows": rows})


if __name__ == "__main__":
    main()
