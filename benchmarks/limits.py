"""Breakdown of a round's time: the arithmetic, other work of the steps, and the exchange with the actors.

    python benchmarks/limits.py [--repeats 5] [--only digits pfl cnn lstm resnet]

Each workload of peers.py, on data of the same shape: one actor's half of a round in this process, both profiled and
timed, and the whole round on two client actors. The bound is the arithmetic of a client step (the products that PyTorch
counts) at the speed of a large matrix product on one core: no framework that computes in float32 is faster.

Prints a table and writes benchmarks/results/limits.json with the command, the versions and the machine.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from measuring import conditions, write_results
from rounds import hedgerow_rounds
from torch.nn import functional as F  # noqa: N812
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode
from workloads import WORKLOADS, Workload

from hedgerow.platform.actors.session import ray_session
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.sampling import steps_per_client
from hedgerow.platform.runtime.factory import build_data, build_module, build_partition, task_on
from hedgerow.platform.runtime.launch import build_coordinator

HERE = Path(__file__).parent / "contenders"

KINDS = {
    "convolutions": ("aten::mkldnn_convolution", "aten::convolution_backward", "aten::_slow_conv2d"),
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
}

ROUNDS = 6
"""Rounds of a run. The first one measures the plan and warms up; the last one evaluates."""


def peak_gflops(size: int = 1536) -> float:
    """GFLOP/s of a large matrix product on one thread."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - start)
    return 2e-9 * size**3 / min(seconds)


def task_of(workload: Workload) -> tuple[Experiment, Dataset, Partition]:
    """Experiment, data set and partition of a workload, with few test samples."""
    source = workload.source(None)
    experiment = replace(workload, rounds=ROUNDS).experiment(source)
    if source.dataset is None:
        dataset, partition = build_data(experiment, None)
    else:
        dataset, partition = source.dataset, build_partition(experiment, source.dataset)
    return experiment, replace(dataset, x_test=dataset.x_test[:50], y_test=dataset.y_test[:50]), partition


def step_gflop(experiment: Experiment, dataset: Dataset) -> float | None:
    """GFLOP of one local step, forward and backward; None for recurrent layers, which PyTorch does not count."""
    module = build_module(experiment, dataset)
    if any(isinstance(part, torch.nn.RNNBase) for part in module.modules()):
        return None
    rows = slice(experiment.algorithm.batch_size)
    x = task_on(dataset, module).prepare(torch.tensor(dataset.x_train[rows]))
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(module(x), torch.tensor(dataset.y_train[rows])).backward()
    return 1e-9 * counter.get_total_flops()


def half_a_round(experiment: Experiment, dataset: Dataset, partition: Partition) -> tuple[float, dict, dict]:
    """Half of a cohort in this process: seconds of a steady round, shares of time by kind of work, and plans."""
    update = {
        "clients_per_round": experiment.clients_per_round // 2,
        "resources": experiment.resources.model_copy(update={"executor": "inline"}),
    }
    half = experiment.model_copy(update=update)
    with tempfile.TemporaryDirectory() as folder:
        coordinator = build_coordinator([half], dataset, partition, [Path(folder) / "checkpoints"])
        coordinator.run_round()
        seconds = []
        for _ in range(ROUNDS - 3):
            start = time.perf_counter()
            coordinator.run_round()
            seconds.append(time.perf_counter() - start)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            start = time.perf_counter()
            coordinator.run_round()
            whole = time.perf_counter() - start
    return median(seconds), shares(profiler, whole), coordinator.executor.plans.known[0]


def shares(recorded: profile, whole: float) -> dict[str, float]:
    """Shares of the time of a profiled round, by kind of work."""
    spent = dict.fromkeys(KINDS, 0.0) | {"other operators": 0.0}
    for event in recorded.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key in names), "other operators")
        if event.key.startswith("aten::"):
            spent[kind] += 1e-6 * event.self_cpu_time_total
    # Time outside of torch operators: Python, autograd, drawing mini-batches, reductions.
    return {kind: round(s / whole, 3) for kind, s in spent.items()} | {
        "rest": round(1 - sum(spent.values()) / whole, 3)
    }


def measure(workload: Workload, repeats: int) -> dict[str, Any]:
    """All figures of a workload: medians over the repeats, measured in turn."""
    experiment, dataset, partition = task_of(workload)
    (spec,) = experiment.algorithm.batches.values()
    steps = int(steps_per_client(spec, partition.train_sizes[:1])[0]) * experiment.clients_per_round // 2
    gflop = step_gflop(experiment, dataset)
    runs = []
    for _ in range(repeats):
        peak = peak_gflops()
        inside, parts, plans = half_a_round(experiment, dataset, partition)
        # By default, the first rounds run in the driver; here, all of them run on the actors.
        values = experiment.model_dump(mode="json", exclude={"name", "rounds"})
        values["resources"]["executor"] = "ray"
        on_actors = median(hedgerow_rounds(values, dataset, partition, ROUNDS)[0])
        runs.append((peak, inside, on_actors, parts))
    peak, inside, on_actors = (median(run[i] for run in runs) for i in range(3))
    figures = {
        "workload": workload.title,
        "plan": f"{plans['train/clients'].mode}, {plans['train/clients'].chunk} at once",
        "client steps of an actor": steps,
        "GFLOP/s, large product": round(peak, 1),
        "ms per client step": float(f"{1e3 * inside / steps:.3g}"),
        "ms per round, an actor's half in this process": round(1e3 * inside, 1),
        "ms per round, two actors": round(1e3 * on_actors, 1),
        "spread": {
            "ms per round, an actor's half in this process": _spread([run[1] for run in runs]),
            "ms per round, two actors": _spread([run[2] for run in runs]),
        },
        "shares of a profiled round": {kind: median(run[3][kind] for run in runs) for kind in runs[0][3]},
    }
    if gflop is not None:
        figures |= {
            "GFLOP per client step": float(f"{gflop:.3g}"),
            "bound, ms per client step": float(f"{1e3 * gflop / peak:.3g}"),
            "share of the bound": round(median(gflop * steps / run[0] / run[1] for run in runs), 2),
        }
    return figures


def _spread(seconds: list[float]) -> list[float]:
    return [round(1e3 * float(end), 1) for end in (np.min(seconds), np.max(seconds))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # In this process and in the actors: the model of pfl's benchmark is imported from there.
    os.environ["PYTHONPATH"] = str(HERE)
    sys.path.insert(0, str(HERE))
    with ray_session():
        results = {name: measure(WORKLOADS[name], arguments.repeats) for name in arguments.only}
    write_results("limits", conditions() | results)


if __name__ == "__main__":
    main()
