"""`for_each_client`: runs a client step for many clients, in a loop or batched with vmap, with the same numbers.

No Ray in here: the same function serves an actor, the inline executor and a benchmark.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
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
    compiled: bool = False
    """Under vmap: with torch.compile, which fuses what is not a matrix product."""


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
class Work:
    """What one run of a client step is given: some clients of one expert, or of several that differ in floats only.

    hypers, downs: one per expert. A row is a client of an expert: clients, experts (n,) say which, and the leaves of
    per_client have a leading dimension along the rows. states: (experts, clients) of some rows -> stacked states.
    key: what the index streams are drawn from, beside stream and client.
    """

    step: ClientStep
    hypers: list[Any]
    downs: list[Tree]
    clients: np.ndarray
    experts: np.ndarray
    per_client: Tree
    states: Callable[[np.ndarray, np.ndarray], Tree]
    samples: Samples
    batches: Mapping[str, Batches]
    key: tuple[int | str, ...]


@dataclass(frozen=True)
class Chunk:
    """What a chunk of rows answered; every leaf has a leading dimension along them."""

    rows: slice
    up: Tree
    state: Tree
    metrics: dict[str, Tensor]


def for_each_client(work: Work, plan: Plan) -> Iterator[Chunk]:
    """Run a client step for every row of `work`, chunk by chunk.

    Under vmap every chunk has the same shape: the last one is filled up with copies of its last row, whose answers are
    dropped.
    """
    n = len(work.clients)
    run = _run_one(work) if plan.mode == "loop" else _run_batched(work, plan.compiled)
    for start in range(0, n, plan.chunk):
        rows = np.minimum(np.arange(start, start + plan.chunk), n - 1)
        experts, clients = work.experts[rows], work.clients[rows]
        extra = tree_map(lambda leaf, rows=rows: leaf[torch.from_numpy(rows).to(leaf.device)], work.per_client)
        inputs = (extra, work.states(experts, clients), work.samples.streams(work.batches, work.key, clients))
        answers = run(experts, inputs)
        real = slice(start, min(start + plan.chunk, n))
        size = real.stop - real.start
        yield Chunk(real, *(tree_map(lambda leaf, size=size: leaf[:size], tree) for tree in answers))


Run = Callable[[np.ndarray, tuple[Tree, ...]], Any]
"""(the experts of a chunk's rows, the rows' own inputs) -> (up, state, metrics) with a leading dimension."""


def _run_one(work: Work) -> Run:
    def run(experts: np.ndarray, inputs: tuple[Tree, ...]) -> Any:
        extra, state, streams = (_each(tree, lambda leaf: leaf[0]) for tree in inputs)
        hp, down = work.hypers[experts[0]], work.downs[experts[0]]
        data = ClientData(work.samples.x, work.samples.y, work.samples.prepare, streams, batched=False)
        answers = work.step(hp, {**down, **extra}, state, data)
        return tuple(tree_map(lambda leaf: leaf.unsqueeze(0), tree) for tree in answers)

    return run


def _run_batched(work: Work, compiled: bool) -> Run:
    device = work.samples.x.device
    several = len(work.hypers) > 1
    # With one expert its message stays unbatched: the first local step then costs one large product, not many small.
    common = {} if several else work.downs[0]
    stacked = tree_map(lambda *leaves: torch.stack(leaves), *work.downs) if several else {}
    columns = {path: torch.tensor(values, device=device) for path, values in _columns(work.hypers, compiled).items()}
    # Without the plain values of those: a compiled step is compiled anew when a plain value changes.
    values = work.hypers[0].with_floats(dict.fromkeys(columns)).model_dump(warnings=False)
    vmapped = _compiled() if compiled else _vmapped

    def run(experts: np.ndarray, inputs: tuple[Tree, ...]) -> Any:
        which = torch.from_numpy(experts).to(device)
        down, floats = (tree_map(lambda leaf: leaf[which], tree) for tree in (stacked, columns))
        return vmapped(work.step, values, common, work.samples, down, floats, *inputs)

    return run


def _vmapped(
    step: ClientStep, values: dict[str, Any], common: Tree, samples: Samples, *batched: Any
) -> tuple[Tree, Tree, dict[str, Tensor]]:
    """A client step for a chunk of rows. batched: what differs from row to row, with a leading dimension."""

    def one(down: Tree, floats: dict[str, Tensor], extra: Tree, state: Tree, streams: Any) -> Any:
        data = ClientData(samples.x, samples.y, samples.prepare, streams, batched=True)
        return step(_attributes(values, floats), {**common, **down, **extra}, state, data)

    return torch.func.vmap(one, randomness="error")(*batched)


@cache
def _compiled() -> Any:
    # One compilation for each step and shape; the default limit of eight is for programs that forget one.
    torch._dynamo.config.recompile_limit = 64  # type: ignore[attr-defined]
    return torch.compile(_vmapped, dynamic=False, fullgraph=True)


def _attributes(values: dict[str, Any], floats: Mapping[str, Tensor], prefix: str = "") -> SimpleNamespace:
    """Hyperparameters as a client step sees them: values, nested sections too, some floats of which are tensors."""
    found = {}
    for name, value in values.items():
        path = prefix + name
        found[name] = _attributes(value, floats, f"{path}.") if isinstance(value, dict) else floats.get(path, value)
    return SimpleNamespace(**found)


def _columns(hypers: list[Any], compiled: bool) -> dict[str, list[float]]:
    """The floats that reach the step as tensors: path -> one value per expert.

    They are those in which experts differ, and, for a compiled step, all but the zeros, which switch things off: a
    rate that decays from round to round must not compile the step anew.
    """
    every = [hp.floats() for hp in hypers]
    columns = {path: [floats[path] for floats in every] for path in every[0]}
    return {path: values for path, values in columns.items() if len(set(values)) > 1 or (compiled and values[0])}


def _each(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Like tree_map, through the (indices, mask) pairs of the streams."""
    if isinstance(tree, tuple):
        return tuple(function(leaf) for leaf in tree)
    if isinstance(tree, dict):
        return {key: _each(child, function) for key, child in tree.items()}
    return function(tree)
