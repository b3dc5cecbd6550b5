"""The baseline: FedAvg as a bare PyTorch loop, in one process or in two, with the tricks that such loops use.

One resident model per process, updated in place; data in memory; torch's foreach SGD; no DataLoader.
"""

import multiprocessing as mp
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

Load = Callable[[], tuple[nn.Module, Tensor, Tensor]]
"""Returns the module with its initial parameters, and all prepared samples; called once in every process."""

Outcome = tuple[list[float], dict[str, np.ndarray]]
"""Wall-clock times before round 1 and after each round, in seconds, and the final parameters."""


def train_share(module: nn.Module, w: dict, clients: Tensor, x: Tensor, y: Tensor, lr: float) -> dict:
    """Train each client from `w`; returns the sum of their parameters. clients: rows of x, (C, steps, batch)."""
    params = dict(module.named_parameters())
    optimizer = torch.optim.SGD(params.values(), lr=lr, foreach=True)
    total = {name: torch.zeros_like(p) for name, p in w.items()}
    for batches in clients:
        with torch.no_grad():
            for name, p in params.items():
                p.copy_(w[name])
        for rows in batches:
            loss = F.cross_entropy(module(x[rows]), y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            for name, p in params.items():
                total[name] += p
    return total


def one_process(load: Load, rounds: np.ndarray, lr: float) -> Outcome:
    """Run FedAvg in this process. rounds: rows of each client's mini-batches, (rounds, C, steps, batch)."""
    torch.set_num_threads(1)
    module, x, y = load()
    w = {name: p.detach().clone() for name, p in module.named_parameters()}
    moments = [time.time()]
    for clients in rounds:
        total = train_share(module, w, torch.from_numpy(clients), x, y, lr)
        w = {name: t / len(clients) for name, t in total.items()}
        moments.append(time.time())
    return moments, {name: p.numpy() for name, p in w.items()}


def _serve(pipe: Any, load: Load, lr: float) -> None:
    torch.set_num_threads(1)
    module, x, y = load()
    while (message := pipe.recv()) is not None:
        w, clients = message
        w = {name: torch.from_numpy(p) for name, p in w.items()}
        total = train_share(module, w, torch.from_numpy(clients), x, y, lr)
        pipe.send({name: t.numpy() for name, t in total.items()})


def two_processes(load: Load, rounds: np.ndarray, lr: float) -> Outcome:
    """Like `one_process`, with the clients split evenly over two processes."""
    context = mp.get_context("spawn")
    pipes, processes = [], []
    for _ in range(2):
        here, there = context.Pipe()
        processes.append(context.Process(target=_serve, args=(there, load, lr), daemon=True))
        processes[-1].start()
        pipes.append(here)
    w = {name: p.detach().numpy().copy() for name, p in load()[0].named_parameters()}
    moments = [time.time()]
    for clients in rounds:
        for rank, pipe in enumerate(pipes):
            pipe.send((w, clients[rank::2]))
        totals = [pipe.recv() for pipe in pipes]
        w = {name: (totals[0][name] + totals[1][name]) / len(clients) for name in w}
        moments.append(time.time())
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    return moments, w


def one(job: Any) -> Outcome:
    return one_process(job.load, job.rows, job.lr)


def two(job: Any) -> Outcome:
    return two_processes(job.load, job.rows, job.lr)
