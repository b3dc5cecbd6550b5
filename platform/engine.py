"""`for_each_client`: runs a client step for many clients, in a loop or batched with vmap, with the same numbers.

No Ray in here: the same function serves an actor, the inline executor and a benchmark.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.base import Batches, ClientData, ClientStep
from hedgerow.algorithms.trees import Tree, tree_map
from hedgerow.platform.streams import draw


@dataclass(frozen=True)
class Plan:
    """How a step is run: one client after the other, or `chunk` clients at once under vmap."""

    mode: Literal["loop", "vmap"]
    chunk: int = 1


class Shares(NamedTuple):
    """Who owns which samples: client k's are order[offsets[k] : offsets[k] + sizes[k]]."""

    offsets: np.ndarray
    sizes: np.ndarray


@dataclass(frozen=True)
class Samples:
    """A data set on the engine's device, dealt to clients.

    x, y: all samples, raw. order: rows of x and y, client by client. held_out: what clients keep for evaluation.
    """

    x: Tensor
    y: Tensor
    prepare: Callable[[Tensor], Tensor]
    order: np.ndarray
    train: Shares
    held_out: Shares

    def streams(
        self, batches: Mapping[str, Batches], key: tuple[int | str, ...], clients: np.ndarray
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Index streams of a chunk: name -> (rows of x and y (C, steps, size), mask of the same shape)."""
        streams = {}
        for name, spec in batches.items():
            shares = self.held_out if spec.held_out else self.train
            positions, mask = draw(spec, (*key, name), clients, shares.sizes[clients])
            rows = self.order[np.where(mask, positions + shares.offsets[clients][:, None, None], 0)]
            device = self.x.device
            streams[name] = torch.from_numpy(rows).to(device), torch.from_numpy(mask).to(device)
        return streams


@dataclass(frozen=True)
class Chunk:
    """What a chunk of clients answered; every leaf has a leading client dimension."""

    clients: np.ndarray
    up: Tree
    state: Tree
    metrics: dict[str, Tensor]


def for_each_client(
    step: ClientStep,
    hp: Any,
    down: Tree,
    per_client: Tree,
    states: Callable[[np.ndarray], Tree],
    samples: Samples,
    batches: Mapping[str, Batches],
    key: tuple[int | str, ...],
    clients: np.ndarray,
    plan: Plan,
) -> Iterator[Chunk]:
    """Run `step` for every one of `clients`, chunk by chunk.

    per_client: leaves with a leading dimension along `clients`. states: ids -> stacked states. key: what the index
    streams are drawn from, beside stream and client. Under vmap every chunk has the same shape: the last one is
    filled up with copies of its last client, whose answers are dropped.
    """
    for start in range(0, len(clients), plan.chunk):
        ids = clients[start : start + plan.chunk]
        real = len(ids)
        rows = np.minimum(np.arange(start, start + plan.chunk), len(clients) - 1)
        padded = clients[rows]
        extra = tree_map(lambda leaf, rows=rows: leaf[torch.from_numpy(rows).to(leaf.device)], per_client)
        inputs = (extra, states(padded), samples.streams(batches, key, padded))
        run = _run_one if plan.mode == "loop" else _run_batched
        up, state, metrics = run(step, hp, down, inputs, samples)
        yield Chunk(ids, *(tree_map(lambda leaf, n=real: leaf[:n], tree) for tree in (up, state, metrics)))


def _run_one(step: ClientStep, hp: Any, down: Tree, inputs: tuple[Tree, ...], samples: Samples) -> Any:
    extra, state, streams = (_each(tree, lambda leaf: leaf[0]) for tree in inputs)
    data = ClientData(samples.x, samples.y, samples.prepare, streams, batched=False)
    return tuple(tree_map(lambda leaf: leaf.unsqueeze(0), tree) for tree in step(hp, {**down, **extra}, state, data))


def _run_batched(step: ClientStep, hp: Any, down: Tree, inputs: tuple[Tree, ...], samples: Samples) -> Any:
    def one(extra: Tree, state: Tree, streams: dict[str, tuple[Tensor, Tensor]]) -> Any:
        data = ClientData(samples.x, samples.y, samples.prepare, streams, batched=True)
        return step(hp, {**down, **extra}, state, data)

    return torch.func.vmap(one, randomness="error")(*inputs)


def _each(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Like tree_map, through the (indices, mask) pairs of the streams."""
    if isinstance(tree, tuple):
        return tuple(function(leaf) for leaf in tree)
    if isinstance(tree, dict):
        return {key: _each(child, function) for key, child in tree.items()}
    return function(tree)
