"""`for_each_client`: runs a client step for many clients, in a loop or batched with vmap, with the same numbers.

No Ray in here: the same function serves an actor, the inline executor and a benchmark.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batches, ClientData, Share
from hedgerow.algorithms.core.messages import ClientStep
from hedgerow.algorithms.core.pytree import Tree, stack, tree_map
from hedgerow.platform.data.partition import Slices
from hedgerow.platform.data.sampling import draw, draw_of, view_keys

SCANNED = 256
"""Samples that are searched for a finite one at a time."""


@dataclass(frozen=True)
class Plan:
    """How a step is run: one client after the other, or `chunk` clients at once under vmap."""

    mode: Literal["loop", "vmap"]
    chunk: int = 1
    compiled: bool = False
    """Under vmap: with torch.compile, which fuses what is not a matrix product."""


@dataclass(frozen=True)
class Samples:
    """A data set on the engine's device, dealt to clients.

    x, y: all samples, raw. order: rows of x and y, client by client. shares: who owns which of them, for what.
    """

    x: Tensor
    y: Tensor
    prepare: Callable[[Tensor], Tensor]
    order: np.ndarray
    shares: Mapping[Share, Slices]
    augment: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """What makes the views of raw samples, see ClientData."""
    owners: "Samples | None" = None
    """Of a pool: the clients' samples, which `Batches.of` names; None: these are the clients'."""
    narrow: bool = False
    """See ClientData."""

    def streams(
        self, batches: Mapping[str, Batches], key: tuple[int | str, ...], clients: np.ndarray
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Index streams of a chunk: name -> (rows of x and y (C, steps, size), mask of the same shape).

        key: seed, round and number of the exchange.
        """
        streams = {}
        for name, spec in batches.items():
            shares, order = self.shares[spec.share], self.order
            if spec.share == "public":
                # One draw for all, whoever they are and whichever exchange of the round it is.
                drawn = draw(spec, (*key[:2], name), np.zeros(1, np.int64), shares.sizes[:1])
                positions, mask = (np.repeat(part, len(clients), axis=0) for part in drawn)
                starts = shares.offsets[:1, None, None]
            elif spec.of is None:
                positions, mask = draw(spec, (*key, name), clients, shares.sizes[clients])
                starts = shares.offsets[clients][:, None, None]
            else:
                of, home = np.asarray(spec.of), self.owners or self
                shares, order = home.shares[spec.share], home.order
                owners, positions, mask = draw_of(spec, (*key, name), clients, shares.sizes[of])
                starts = shares.offsets[of][owners]
            rows = self._padded(order[np.where(mask, positions + starts, 0)], mask)
            device = self.x.device
            streams[name] = torch.from_numpy(rows).to(device), torch.from_numpy(mask).to(device)
        return streams

    def _padded(self, rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Let padding repeat real samples of the same client, so that a mask of zeros is enough to remove it.

        Zero times infinity is NaN, in the gradient too: a sample of another client would carry that client's infinity
        into this one. Padding repeats the first sample of its mini-batch; a mini-batch without samples, the first
        sample of the stream; a stream without samples, a finite sample of the data set. rows, mask: (C, steps, size).
        """
        if mask.all():
            return rows
        real = np.asarray(mask.any(-1))
        first = np.take_along_axis(rows, mask.argmax(-1)[..., None], -1)  # (C, steps, 1)
        if not real.all():
            of_stream = np.take_along_axis(first, real.argmax(-1)[:, None, None], 1)  # (C, 1, 1)
            if not (has := np.asarray(real.any(-1))).all():
                of_stream = np.where(has[:, None, None], of_stream, self._finite_row())
            first = np.where(real[..., None], first, of_stream)
        return np.where(mask, rows, first)

    def _finite_row(self) -> int:
        """The first dealt sample without infinity or NaN; the first one where there is none."""
        for start in range(0, len(self.order), SCANNED):
            rows = torch.from_numpy(self.order[start : start + SCANNED]).to(self.x.device)
            finite = self.x[rows].isfinite().reshape(len(rows), -1).all(1)
            if finite.any():
                return int(rows[finite.int().argmax()])
        return int(self.order[0])

    def keys(
        self, batches: Mapping[str, Batches], key: tuple[int | str, ...], clients: np.ndarray, streams: Any
    ) -> dict[str, Tensor]:
        """What is random about the views of a chunk's samples: name -> (C, steps, views), of streams with any."""
        found = {}
        for name, spec in batches.items():
            if spec.views > 1 or (spec.views and self.augment is not None):
                drawn = view_keys(spec, (*key, name), clients, streams[name][0].shape[1])
                found[name] = torch.from_numpy(drawn).to(self.x.device)
        return found


@dataclass(frozen=True)
class Work:
    """What one run of a client step is given: some clients, of one expert or of E that differ in floats only.

    hypers, downs: one per expert. clients (n,). per_client: leaves (E, n, ...). states: clients -> leaves (E, their
    number, ...). key: what the index streams are drawn from, beside stream and client (seed, round and number of the
    exchange); experts have them in common.
    """

    step: ClientStep
    hypers: list[Any]
    downs: list[Tree]
    clients: np.ndarray
    per_client: Tree
    states: Callable[[np.ndarray], Tree]
    samples: Samples
    batches: Mapping[str, Batches]
    key: tuple[int | str, ...]


@dataclass(frozen=True)
class Chunk:
    """What a chunk of clients answered; every leaf has leading dimensions (E, their number)."""

    clients: slice
    up: Tree
    state: Tree
    metrics: dict[str, Tensor]


def for_each_client(work: Work, plan: Plan) -> Iterator[Chunk]:
    """Run a client step for every client of `work`, chunk by chunk.

    Under vmap every chunk has the same shape: the last one is filled up with copies of its last client, whose answers
    are dropped.
    """
    n = len(work.clients)
    run = _run_one(work) if plan.mode == "loop" else _run_batched(work, plan.compiled)
    for start in range(0, n, plan.chunk):
        rows = np.minimum(np.arange(start, start + plan.chunk), n - 1)
        clients = work.clients[rows]
        extra = tree_map(lambda leaf, rows=rows: leaf[:, torch.from_numpy(rows).to(leaf.device)], work.per_client)
        streams = work.samples.streams(work.batches, work.key, clients)
        keys = work.samples.keys(work.batches, work.key, clients, streams)
        answers = run(extra, work.states(clients), streams, keys)
        real = slice(start, min(start + plan.chunk, n))
        size = real.stop - real.start
        yield Chunk(real, *(tree_map(lambda leaf, size=size: leaf[:, :size], tree) for tree in answers))


Run = Callable[[Tree, Tree, Any, Tree], Any]
"""(per-client messages, states, streams, keys of views) of a chunk -> (up, state, metrics)."""


def _run_one(work: Work) -> Run:
    def run(extra: Tree, state: Tree, streams: Any, keys: Tree) -> Any:
        samples, streams, keys = work.samples, _each(streams, lambda leaf: leaf[0]), _each(keys, lambda leaf: leaf[0])
        data = ClientData(samples.x, samples.y, samples.prepare, streams, False, keys, samples.augment, samples.narrow)
        answers = []
        for expert, (hp, down) in enumerate(zip(work.hypers, work.downs, strict=True)):
            own, mine = (tree_map(lambda leaf, e=expert: leaf[e, 0], tree) for tree in (extra, state))
            answers.append(work.step(hp, {**down, **own}, mine, data))
        return tuple(tree_map(lambda leaf: leaf[:, None], stack(*part)) for part in zip(*answers, strict=True))

    return run


def _run_batched(work: Work, compiled: bool) -> Run:
    device = work.samples.x.device
    downs = stack(*work.downs)
    floats = {path: torch.tensor(values, device=device) for path, values in _columns(work.hypers, compiled).items()}
    # Without the plain values of those: a compiled step is compiled anew when a plain value changes.
    values = work.hypers[0].with_floats(dict.fromkeys(floats)).model_dump(warnings=False)
    vmapped = _compiled() if compiled else _vmapped

    def run(extra: Tree, state: Tree, streams: Any, keys: Tree) -> Any:
        return vmapped(work.step, values, work.samples, len(work.hypers), downs, floats, extra, state, streams, keys)

    return run


def _vmapped(
    step: ClientStep,
    values: dict[str, Any],
    samples: Samples,
    experts: int,
    downs: Tree,
    floats: dict[str, Tensor],
    extra: Tree,
    state: Tree,
    streams: Any,
    keys: Tree,
) -> tuple[Tree, Tree, dict[str, Tensor]]:
    """A client step for a chunk of clients, for every expert.

    Clients of an expert share its message, and experts their clients' samples: the products of the first local step,
    and of evaluation, are then few and large.
    """

    def clients(expert: Tensor, down: Tree, floats: dict[str, Tensor], extra: Tree, state: Tree) -> Any:
        hp = _attributes(values, floats)

        def one(extra: Tree, state: Tree, streams: Any, keys: Tree) -> Any:
            data = ClientData(samples.x, samples.y, samples.prepare, streams, True, keys, samples.augment)
            return step(hp, {**down, **extra}, state, data)

        return torch.func.vmap(one, randomness="error")(extra, state, streams, keys)

    # The numbers are there because vmap wants at least one tensor, and all the trees may be empty.
    batched = (torch.arange(experts), downs, floats, extra, state)
    if experts > 1:
        return torch.func.vmap(clients, randomness="error")(*batched)
    # A level of vmap less.
    only = (tree_map(lambda leaf: leaf[0], tree) for tree in batched)
    return tuple(tree_map(lambda leaf: leaf[None], tree) for tree in clients(*only))  # type: ignore[return-value]


@cache
def _compiled() -> Any:
    # One compilation for each step and shape of the runs that a process serves; the default limits of eight and 256
    # are for programs that forget one.
    torch._dynamo.config.recompile_limit = 1024  # type: ignore[attr-defined]
    torch._dynamo.config.accumulated_recompile_limit = 1024  # type: ignore[attr-defined]
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
