"""Throughput of one GPU: clients per second by chunk size, by processes that share it, and by precision. Needs no Ray.

    python benchmarks/gpu.py [--device cuda] [--only chunks processes precision] [--repeats 5]

Without a GPU, it prints a message and measures nothing; `--device cpu --quick` tests the script itself. Prints the
figures and writes them to benchmarks/results/gpu.json with the command, the versions and the machine.
"""

import argparse
import multiprocessing as mp
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from measuring import conditions, noise, write_results
from torch.utils.flop_counter import FlopCounterMode

from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.config.resources import Resources
from hedgerow.platform.runtime.factory import build_algorithms
from hedgerow.platform.runtime.shards import ChunkTooLarge, ExecutionPlan, WorkShard
from hedgerow.platform.runtime.worker import Worker

PEAK = {
    "H100": {"float32": 67e12, "tf32": 494e12, "bf16": 989e12},
    "H200": {"float32": 67e12, "tf32": 494e12, "bf16": 989e12},
    "A100": {"float32": 19.5e12, "tf32": 156e12, "bf16": 312e12},
}
"""Dense FLOP/s according to the vendor's data sheets (SXM versions)."""

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"model": {"name": "mlp", "hidden": [200, 200]}, "shape": (1, 28, 28), "samples": 50, "batch": 10},
    "cnn": {"model": {"name": "cnn"}, "shape": (3, 32, 32), "samples": 100, "batch": 50},
    "resnet18_gn": {"model": {"name": "resnet18_gn"}, "shape": (3, 32, 32), "samples": 40, "batch": 20},
}
"""Models, and the local data of their clients for one epoch of SGD."""

CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)


def worker_of(name: str, clients: int, device: str) -> tuple[Worker, dict[str, Any]]:
    """A worker with random images of the model's shape, and the message that its clients receive."""
    model = MODELS[name]
    experiment = parse_experiment(
        {
            "name": "gpu",
            "rounds": 1,
            "clients_per_round": "all",
            "task": {
                "data": {"name": "digits"},
                "partition": {"kind": "iid", "clients": clients, "samples_per_client": model["samples"]},
                "model": model["model"],
            },
            "algorithm": {"name": "fedavg", "lr": 0.01, "batch_size": model["batch"]},
        }
    )
    dataset = noise(model["shape"], clients * model["samples"], 10, 10)
    partition = experiment.task.partition.draw(dataset.y_train, 10, None, 0)
    resources = Resources(gpus_per_actor=float(device == "cuda"))
    worker = Worker(build_algorithms([experiment], dataset, partition), dataset, partition, 0, resources)
    return worker, {"w": worker.algorithms[0].init_server()["w"]}


def shard_of(worker: Worker, clients: int, plan: ExecutionPlan, number: int) -> WorkShard:
    ids = np.arange(clients)
    batches = worker.algorithms[0].hyper.batches
    return WorkShard("train", ids, round=number, weights=np.ones(clients), batches=batches, plan=plan)


def clients_per_second(worker: Worker, down: dict[str, Any], clients: int, plan: ExecutionPlan, repeats: int) -> float:
    """Median clients per second over some rounds, including the transfer of the replies back to the host."""
    seconds = []
    for number in range(1, repeats + 3):
        start = time.perf_counter()
        worker.run([shard_of(worker, clients, plan, number)], broadcasts=[down])
        seconds.append(time.perf_counter() - start)
    return clients / median(seconds[2:])


def flops_per_client(worker: Worker, down: dict[str, Any]) -> float:
    """Floating-point operations of one client's round, forward and backward."""
    with FlopCounterMode(display=False) as counter:
        worker.run([shard_of(worker, 1, ExecutionPlan("loop"), 1)], broadcasts=[down])
    return float(counter.get_total_flops())


def plans(clients: int) -> list[ExecutionPlan]:
    chunks = [chunk for chunk in CHUNKS if chunk <= clients]
    batched = [ExecutionPlan("vmap", chunk) for chunk in chunks if chunk > 1]
    return [ExecutionPlan("loop"), *batched, *(replace(plan, compiled=True) for plan in batched[-2:])]


def by_chunk(name: str, clients: int, device: str, repeats: int) -> dict[str, Any]:
    """Clients per second under each plan; plans that run out of memory are marked."""
    worker, down = worker_of(name, clients, device)
    rates: dict[str, Any] = {}
    for plan in plans(clients):
        label = plan.mode if plan.mode == "loop" else f"vmap {plan.chunk}{' compiled' if plan.compiled else ''}"
        try:
            rates[label] = round(clients_per_second(worker, down, clients, plan, repeats), 1)
        except (ChunkTooLarge, torch.OutOfMemoryError):
            rates[label] = "out of memory"
    return rates


PRECISIONS: dict[str, tuple[str, AbstractContextManager[Any]]] = {
    "float32": ("highest", nullcontext()),
    "tf32": ("high", nullcontext()),
    "bf16": ("high", torch.autocast("cuda", torch.bfloat16)),
}
"""Precision of float32 products in torch, and the context manager of the round."""


def by_precision(name: str, clients: int, device: str, repeats: int, card: str) -> dict[str, Any]:
    """Clients per second and share of the card's peak, with the largest chunk that fits the cohort."""
    worker, down = worker_of(name, clients, device)
    work = flops_per_client(worker, down)
    plan = ExecutionPlan("vmap", max(chunk for chunk in CHUNKS if chunk <= min(clients, 64)))
    rates: dict[str, Any] = {"GFLOP per client": round(work / 1e9, 3)}
    for precision, (products, context) in PRECISIONS.items():
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = precision != "float32"
        with context:
            rate = clients_per_second(worker, down, clients, plan, repeats)
        peak = next((peaks[precision] for gpu, peaks in PEAK.items() if gpu in card), None)
        rates[precision] = {"clients per second": round(rate, 1)}
        if peak:
            rates[precision]["share of peak"] = round(rate * work / peak, 4)
    torch.set_float32_matmul_precision("highest")
    return rates


def _serve(pipe: Any, name: str, clients: int, device: str, plan: ExecutionPlan) -> None:
    worker, down = worker_of(name, clients, device)
    while (number := pipe.recv()) is not None:
        worker.run([shard_of(worker, clients, plan, number)], broadcasts=[down])
        pipe.send(number)


def by_processes(name: str, clients: int, device: str, repeats: int, counts: tuple[int, ...]) -> dict[str, Any]:
    """Clients per second of one process, and of several that share the GPU and split the clients."""
    context = mp.get_context("spawn")
    rates: dict[str, Any] = {}
    for count in counts:
        share = clients // count
        pipes, processes = [], []
        for _ in range(count):
            here, there = context.Pipe()
            plan = ExecutionPlan("vmap", min(64, share))
            processes.append(context.Process(target=_serve, args=(there, name, share, device, plan), daemon=True))
            processes[-1].start()
            pipes.append(here)
        seconds = []
        for number in range(1, repeats + 3):
            start = time.perf_counter()
            for pipe in pipes:
                pipe.send(number)
            for pipe in pipes:
                pipe.recv()
            seconds.append(time.perf_counter() - start)
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(None)
            process.join()
        rates[f"{count} processes"] = round(count * share / median(seconds[2:]), 1)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["chunks", "processes", "precision"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="few clients: checks that it runs, not how fast")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("gpu.py: no GPU on this machine; nothing was measured")
        return
    card = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    results: dict[str, Any] = {**conditions(), "card": card}
    for name in arguments.models:
        clients = 4 if arguments.quick else 128
        figures = results[name] = {}
        if "chunks" in arguments.only:
            figures["clients per second by plan"] = by_chunk(name, clients, arguments.device, arguments.repeats)
        if "processes" in arguments.only:
            counts = (1, 2) if arguments.quick else (1, 2, 4, 8)
            figures["clients per second by processes"] = by_processes(
                name, clients, arguments.device, arguments.repeats, counts
            )
        if "precision" in arguments.only and arguments.device == "cuda":
            figures["by precision"] = by_precision(name, clients, arguments.device, arguments.repeats, card)
    write_results("gpu", results)


if __name__ == "__main__":
    main()
