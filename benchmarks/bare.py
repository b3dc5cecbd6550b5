"""The baseline: FedAvg as a bare PyTorch loop, in one process or in two, with the tricks that such loops use.

One resident model per process, updated in place; data in memory; torch's foreach SGD; no DataLoader.
"""

import multiprocessing as mp
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812


def train_share(module: nn.Module, w: dict, clients: list, x: Any, y: Any, epochs: int, batch: int, lr: float) -> dict:
    """Train each client from `w`; returns the sum of their parameters."""
    params = dict(module.named_parameters())
    optimizer = torch.optim.SGD(params.values(), lr=lr, foreach=True)
    total = {name: torch.zeros_like(p) for name, p in w.items()}
    for rows in clients:
        with torch.no_grad():
            for name, p in params.items():
                p.copy_(w[name])
        for _ in range(epochs):
            order = rows[torch.randperm(len(rows))]
            for start in range(0, len(order), batch):
                chosen = order[start : start + batch]
                loss = F.cross_entropy(module(x[chosen]), y[chosen])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
        with torch.no_grad():
            for name, p in params.items():
                total[name] += p
    return total


def one_process(build: Any, data: tuple, cohorts: list[list], epochs: int, batch: int, lr: float) -> list[float]:
    """Seconds of each round."""
    torch.set_num_threads(1)
    x, y = data
    module = build()
    w = {name: p.detach().clone() for name, p in module.named_parameters()}
    seconds = []
    for clients in cohorts:
        start = time.perf_counter()
        total = train_share(module, w, clients, x, y, epochs, batch, lr)
        w = {name: t / len(clients) for name, t in total.items()}
        seconds.append(time.perf_counter() - start)
    return seconds


def _serve(pipe: Any, build: Any, data: tuple, epochs: int, batch: int, lr: float) -> None:
    torch.set_num_threads(1)
    module = build()
    x, y = (torch.from_numpy(a) for a in data)
    while (message := pipe.recv()) is not None:
        w, clients = message
        w = {name: torch.from_numpy(p) for name, p in w.items()}
        total = train_share(module, w, [torch.from_numpy(c) for c in clients], x, y, epochs, batch, lr)
        pipe.send({name: t.numpy() for name, t in total.items()})


def two_processes(build: Any, data: tuple, cohorts: list[list], epochs: int, batch: int, lr: float) -> list[float]:
    """Seconds of each round, with the clients split evenly over two processes."""
    context = mp.get_context("spawn")
    arrays = tuple(t.numpy() for t in data)
    pipes, processes = [], []
    for _ in range(2):
        here, there = context.Pipe()
        processes.append(context.Process(target=_serve, args=(there, build, arrays, epochs, batch, lr), daemon=True))
        processes[-1].start()
        pipes.append(here)
    w = {name: p.detach().numpy().copy() for name, p in build().named_parameters()}
    seconds = []
    for clients in cohorts:
        start = time.perf_counter()
        for rank, pipe in enumerate(pipes):
            pipe.send((w, [np.asarray(rows) for rows in clients[rank::2]]))
        totals = [pipe.recv() for pipe in pipes]
        w = {name: (totals[0][name] + totals[1][name]) / len(clients) for name in w}
        seconds.append(time.perf_counter() - start)
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    return seconds
