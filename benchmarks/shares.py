"""Time of the clients' work of a round, without any exchange: Hedgerow in one process against the bare loop.

    python benchmarks/shares.py [--rounds 12] [--data-root FOLDER] [--only digits mnist-mlp ...]

The two take turns, round by round, with the same clients and mini-batches. It is processor time, which hardly depends
on other work on the machine. Prints the ratios and writes benchmarks/results/shares.json. gpu.py measures the same on
a GPU, in wall-clock time until all results are computed, where the bare loop uses PyTorch's default algorithms.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from jobs import write_job
from measuring import conditions, write_results
from workloads import WORKLOADS, Workload

from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import build_data, build_partition
from hedgerow.platform.runtime.shards import ExecutionPlan

sys.path.insert(0, str(Path(__file__).parent / "contenders"))

from bare import train_share
from job import Job

BRIEF = 4
"""Rounds of a workload whose rounds take longer than a second."""


def measure(
    workload: Workload, rounds: int, data_root: Path | None, device: str, settings: list[str]
) -> dict[str, Any]:
    """Seconds per round of the bare loop and of Hedgerow, as a loop and under the plan that it chooses."""
    on_gpu = device == "cuda"
    rounds = min(rounds, BRIEF) if workload.rounds <= BRIEF and not on_gpu else rounds
    workload = replace(workload, rounds=rounds)
    with tempfile.TemporaryDirectory(prefix="hedgerow-shares-") as scratch:
        written = write_job(Path(scratch) / "job", workload, data_root)
        job = Job(written.folder)
        module, x, y = (part.to(device) for part in job.load())
        w = {name: p.detach().clone() for name, p in module.named_parameters()}
        own = ["resources.executor=inline", "resources.device=cuda"] if on_gpu else ["resources.device=cpu"]
        experiment = load_experiment(written.folder / "experiment.yaml", [*own, *settings])
        dataset = written.source.dataset
        if dataset is None:
            dataset, partition = build_data(experiment, data_root)
        else:
            partition = build_partition(experiment, dataset)
        coordinators = {}
        for name in ("loop", "graph", "chosen") if on_gpu else ("loop", "chosen"):
            folder, parts = Path(scratch) / name, 1 if on_gpu else 2
            coordinators[name] = build_coordinator([experiment], dataset, partition, [folder], parts=parts)
            if name != "chosen":
                coordinators[name].executor.plans.known[0]["train/clients"] = ExecutionPlan(name)
        torch.set_num_threads(1)
        seconds: dict[str, list[float]] = {"bare": [], **{name: [] for name in coordinators}}
        for clients in job.rows:
            rows = torch.from_numpy(clients)
            with pytorch_defaults():
                bare = _timed(lambda: train_share(module, w, rows.to(device), x, y, job.lr), on_gpu)  # noqa: B023
            seconds["bare"].append(bare)
            for name, coordinator in coordinators.items():
                seconds[name].append(_timed(coordinator.next_round, on_gpu))
        plans = {name: coordinator.plans()["train/clients"] for name, coordinator in coordinators.items()}
        kernels = {}
        if on_gpu:
            with pytorch_defaults():
                kernels["kernels"] = _kernel_seconds(lambda: train_share(module, w, rows.to(device), x, y, job.lr))
    # The first round measures a plan.
    ratios = {name: median(np.array(seconds["bare"][1:]) / np.array(seconds[name][1:])) for name in coordinators}
    medians = {name: median(values[1:]) for name, values in seconds.items()} | kernels
    return {"title": workload.title, "seconds": medians, **ratios, "plan": plans["chosen"], "plans": plans}


def _kernel_seconds(work: Any) -> float:
    """Seconds that a GPU computes: no round is faster whose kernels run one after the other."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in profile.key_averages()) / 1e6


@contextmanager
def pytorch_defaults() -> Iterator[None]:
    """Context with the algorithms that PyTorch uses on a GPU by default."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = torch.are_deterministic_algorithms_enabled(), matmul.allow_tf32, cudnn.allow_tf32
    torch.use_deterministic_algorithms(False)
    matmul.allow_tf32, cudnn.allow_tf32 = False, True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=True)
        matmul.allow_tf32, cudnn.allow_tf32 = before[1:]


def _timed(work: Any, on_gpu: bool) -> float:
    clock = time.perf_counter if on_gpu else time.process_time
    begun = clock()
    work()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--data-root", type=Path, help="folder of MNIST, CIFAR-10 and tiny-Shakespeare, if present")
    parser.add_argument("--only", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    arguments = parser.parse_args()
    results = {}
    for name in arguments.only:
        results[name] = one = measure(WORKLOADS[name], arguments.rounds, arguments.data_root, "cpu", [])
        print(
            f"{name}: bare loop / Hedgerow {one['loop']:.2f} as a loop, {one['chosen']:.2f} under {one['plan']}",
            flush=True,
        )
    write_results("shares", conditions() | results)


if __name__ == "__main__":
    main()
