"""`run_clients`: runs a client step for many clients, in a loop or batched with vmap, with the same results."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData, Split
from hedgerow.algorithms.core.keyed_random import seeded
from hedgerow.algorithms.core.messages import ClientStep, StepResult
from hedgerow.algorithms.core.precision import Precision, precision_of_models
from hedgerow.algorithms.core.pytree import Tree, stack, tree_map
from hedgerow.algorithms.core.torch_private import allow_recompilations
from hedgerow.algorithms.optim.batched_functions import batched_attention
from hedgerow.algorithms.optim.gradient import direct_gradients
from hedgerow.platform.common.cuda_graphs import CapturedCalls
from hedgerow.platform.common.memory import is_out_of_memory
from hedgerow.platform.data.partition import Slices
from hedgerow.platform.data.sampling import client_keys, draw_batches, draw_pooled_batches, view_keys
from hedgerow.platform.runtime.shards import WorkShard

DRAWN = 2**18
"""Number of samples that are drawn at once for a loop over clients."""

SCANNED = 256
"""Number of samples per block in the search for a finite one."""


@dataclass(frozen=True)
class Samples:
    """A data set on the engine's device, divided among clients.

    x, y: all samples, raw. order: rows of x and y, client by client. splits: which samples each client has in each
    split.
    """

    x: Tensor
    y: Tensor
    prepare: Callable[[Tensor], Tensor]
    order: np.ndarray
    splits: Mapping[Split, Slices]
    augment: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    """Makes the views of raw samples, see ClientData."""
    owners: "Samples | None" = None
    """For a pool: the clients' samples, which `BatchSpec.pooled_from` refers to; None: these are the clients'."""
    plain: bool = False
    """See ClientData."""
    takes_padding: bool = True
    """Whether the model may be called with padded mini-batches, see `TrainMode`."""

    def streams(
        self, batches: Mapping[str, BatchSpec], key: tuple[int | str, ...], clients: np.ndarray, padded: bool = True
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Index streams of a chunk, on the CPU: name -> (rows of x and y (C, steps, size), mask of the same shape).

        key: seed, round and position of the exchange. padded: where the mask is False, rows are real samples of the
        same client.
        """
        streams = {}
        for name, spec in batches.items():
            slices, order = self.splits[spec.split], self.order
            if spec.split == "public":
                # All clients share one draw, in every exchange of the round.
                draw = draw_batches(spec, (*key[:2], name), np.zeros(1, np.int64), slices.sizes[:1])
                positions, mask = (np.repeat(part, len(clients), axis=0) for part in draw)
                starts = slices.offsets[:1, None, None]
            elif spec.pooled_from is None:
                positions, mask = draw_batches(spec, (*key, name), clients, slices.sizes[clients])
                starts = slices.offsets[clients][:, None, None]
            else:
                of, home = np.asarray(spec.pooled_from), self.owners or self
                slices, order = home.splits[spec.split], home.order
                owners, positions, mask = draw_pooled_batches(spec, (*key, name), clients, slices.sizes[of])
                starts = slices.offsets[of][owners]
            rows = order[np.where(mask, positions + starts, 0)]
            if padded:
                rows = self._padded(rows, mask)
            streams[name] = torch.from_numpy(rows), torch.from_numpy(mask)
        return streams

    def each(
        self, batches: Mapping[str, BatchSpec], key: tuple[int | str, ...], clients: np.ndarray, keyed: bool
    ) -> Iterator[tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]]:
        """Streams and keys of one client after the other, with a leading dimension of one client and no padding.

        Rows and the keys of views are on the device; masks and the clients' own keys, whose values are read, on the
        CPU. For the arguments see `drawn`.
        """
        together = self._drawn_together(batches)
        for start in range(0, len(clients), together):
            chunk = clients[start : start + together]
            streams, keys = self.drawn(batches, key, chunk, keyed, padded=False)
            streams = {
                name: (rows.to(self.x.device, non_blocking=True), mask) for name, (rows, mask) in streams.items()
            }
            keys = {name: key.to(self.x.device, non_blocking=True) if name else key for name, key in keys.items()}
            sizes = {
                name: (mask.any(-1).sum(-1).tolist(), mask.any(1).sum(-1).tolist())
                for name, (_, mask) in streams.items()
                if together > 1
            }
            for i in range(len(chunk)):
                own = {name: (rows[i : i + 1], mask[i : i + 1]) for name, (rows, mask) in streams.items()}
                for name, (steps, size) in sizes.items():
                    rows, mask = own[name]
                    own[name] = rows[:, : steps[i], : max(1, size[i])], mask[:, : steps[i], : max(1, size[i])]
                views = {name: key[i : i + 1] for name, key in keys.items()}
                yield own, {name: key[:, : own[name][0].shape[1]] if name else key for name, key in views.items()}

    def _drawn_together(self, batches: Mapping[str, BatchSpec]) -> int:
        """Number of clients whose mini-batches are drawn at once in a loop."""
        most = 1
        for spec in batches.values():
            if spec.pooled_from is not None:
                # Mini-batches without samples may then precede others.
                return 1
            largest = int(self.splits[spec.split].sizes.max(initial=1))
            # The client with the fewest samples may pass over them in every step.
            most = max(most, largest * (spec.steps or spec.epochs), (spec.steps or 0) * (spec.size or largest))
        return max(1, DRAWN // most)

    def drawn(
        self,
        batches: Mapping[str, BatchSpec],
        key: tuple[int | str, ...],
        clients: np.ndarray,
        keyed: bool,
        padded: bool = True,
    ) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        """Streams and keys of a chunk of clients on the CPU, see `streams` and `keys`. keyed: with each own key."""
        streams = self.streams(batches, key, clients, padded)
        keys = self.keys(batches, key, clients, streams)
        if keyed:
            # No stream has an empty name.
            keys[""] = torch.from_numpy(client_keys(key, clients))
        return streams, keys

    def _padded(self, rows: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Replace padding with real samples of the same client, so that a mask of zeros is enough to remove it.

        Zero times infinity is NaN, in the gradient too: a sample of another client would carry that client's infinity
        into this one. Padding repeats the first sample of its mini-batch. A mini-batch without samples repeats the
        first sample of the stream, and a stream without samples a finite sample of the data set. rows, mask: (C, steps,
        size).
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
        """First sample of a client without infinity or NaN; the first sample if there is none."""
        for start in range(0, len(self.order), SCANNED):
            rows = torch.from_numpy(self.order[start : start + SCANNED]).to(self.x.device)
            finite = self.x[rows].isfinite().reshape(len(rows), -1).all(1)
            if finite.any():
                return int(rows[finite.int().argmax()])
        return int(self.order[0])

    def keys(
        self, batches: Mapping[str, BatchSpec], key: tuple[int | str, ...], clients: np.ndarray, streams: Any
    ) -> dict[str, Tensor]:
        """Random keys for the views of a chunk's samples: name -> (C, steps, views), for streams with views."""
        result = {}
        for name, spec in batches.items():
            if spec.views > 1 or (spec.views and self.augment is not None):
                draw = view_keys(spec, (*key, name), clients, streams[name][0].shape[1])
                result[name] = torch.from_numpy(draw)
        return result


Answers = tuple[Tree, Tree, Tree, Tree]
"""Updates, states, metrics and models of a chunk of clients; every leaf has a leading dimension of clients."""


def run_clients(
    shard: WorkShard,
    step: ClientStep,
    hypers: list[Any],
    broadcasts: list[Tree],
    per_client: Tree,
    states: Callable[[np.ndarray], list[Tree]],
    samples: Samples,
    seed: int,
    captured: CapturedCalls,
    precision: Precision = "float32",
    scheduled: Sequence[Mapping[str, float]] = (),
) -> Iterator[tuple[slice, list[Answers]]]:
    """Run a client step for every client of a shard, chunk by chunk; yields the positions and, for each variant, the
    answers of each chunk.

    The updates of an answer are valid until the next one.

    It runs for E variants of an experiment that differ only in floats. Under vmap every chunk has the same shape: the
    last one is padded with copies of its last client, whose answers are dropped.

    hypers, broadcasts: one per variant. per_client: leaves (E, clients of the shard, ...). states: maps positions of
    clients in the shard to leaves (clients, ...) of each variant. captured: graphs of steps that run as one.
    scheduled: for each variant, floats that differ from those of round 1, by path: a graph reads them as tensors.
    """
    plan, n, key = shard.plan, len(shard.clients), (seed, shard.round, shard.position)
    # A plan of a GPU may continue on the CPU, with the same calls.
    is_captured = plan.mode == "graph" and samples.x.is_cuda
    run = one = _run_one(step, hypers, broadcasts, samples, captured if is_captured else None, scheduled)
    if plan.mode == "vmap":
        run = _run_batched(step, hypers, broadcasts, samples, plan.compiled)
    alone = None if plan.mode == "vmap" else samples.each(shard.batches, key, shard.clients, shard.keyed)
    for start in range(0, n, plan.chunk):
        rows, size = np.minimum(np.arange(start, start + plan.chunk), n - 1), min(plan.chunk, n - start)
        clients = shard.clients[rows]
        at = torch.from_numpy(rows).to(samples.x.device, non_blocking=True) if per_client else None
        extra = tree_map(lambda leaf, at=at: leaf[:, at], per_client)
        streams, keys = next(alone) if alone else samples.drawn(shard.batches, key, clients, shard.keyed)
        with precision_of_models(precision):
            if alone or samples.takes_padding or all(mask.all() for _, mask in streams.values()):
                answers = run(extra, states(rows), streams, keys)
            else:
                # Not the copies that fill up a chunk.
                each = samples.each(shard.batches, key, clients[:size], shard.keyed)
                answers = _in_turn(one, extra, states(rows), each)
        if size < plan.chunk:
            answers = [tuple(tree_map(lambda leaf, size=size: leaf[:size], tree) for tree in one) for one in answers]
        yield slice(start, start + size), answers
        # The next chunk takes their memory.
        del answers


def _answer(result: Any) -> Answers:
    """Answer of one client."""
    update, state, metrics, model = StepResult.of(result)
    return update, state, metrics, model or {}


Run = Callable[[Tree, list[Tree], Any, Tree], list[Answers]]
"""Maps (per-client messages, states, streams, keys of views) of a chunk to its answers, one per variant."""


def _in_turn(run: Run, extra: Tree, states: list[Tree], each: Iterator[Any]) -> Any:
    """Answers of the clients of a chunk, one after the other."""
    answers = []
    for i, drawn in enumerate(each):
        message = tree_map(lambda leaf, i=i: leaf[:, i : i + 1], extra)
        mine = [tree_map(lambda leaf, i=i: leaf[i : i + 1], state) for state in states]
        answers.append(run(message, mine, *drawn))
    return [
        tuple(tree_map(lambda *parts: torch.cat(parts), *trees) for trees in zip(*variant, strict=True))
        for variant in zip(*answers, strict=True)
    ]


def _run_one(
    step: ClientStep,
    hypers: list[Any],
    broadcasts: list[Tree],
    samples: Samples,
    captured: CapturedCalls | None,
    scheduled: Sequence[Mapping[str, float]],
) -> Run:
    """captured: graphs of steps that run as one; None: kernel by kernel. scheduled: see `run_clients`."""
    device = samples.x.device
    inputs_of = [{"down": down, "floats": dict[str, Tensor]()} for down in broadcasts]
    calls: list[Any] = [None for _ in hypers]

    def prepare(variant: int, captured: CapturedCalls, floats: Mapping[str, float]) -> None:
        """Have a variant's graph read some floats as tensors."""
        # In double precision, like the numbers of Python; filling memory waits for nothing.
        tensors = {path: torch.full((), x, dtype=torch.float64, device=device) for path, x in floats.items()}
        inputs_of[variant]["floats"] = tensors
        settings = repr(hypers[variant].with_floats(dict.fromkeys(floats)).model_dump(warnings=False))
        name, down = (step, id(samples), variant), inputs_of[variant]["down"]
        calls[variant] = captured.of(name, settings, {"down": down}, {"floats": tensors})

    if captured is not None:
        for variant, floats in enumerate(scheduled or [{} for _ in hypers]):
            prepare(variant, captured, {} if step in captured.plain else floats)

    def run(extra: Tree, states: list[Tree], streams: Any, keys: Tree) -> Any:
        streams, keys = (_each(tree, lambda leaf: leaf[0]) for tree in (streams, keys))
        rows, masks = ({name: pair[i] for name, pair in streams.items()} for i in (0, 1))
        own = keys.pop("", None)
        mine = {"rows": rows, "keys": keys} | ({} if own is None else {"key": own.to(device, non_blocking=True)})
        kind = tuple((name, mask.numpy().tobytes()) for name, mask in masks.items()) if captured is not None else None
        answers = []
        for variant, (hp, state) in enumerate(zip(hypers, states, strict=True)):

            def answer(shared: Tree, mine: Tree, hp: Any = hp) -> Answers:
                hp, down = hp.with_floats(shared["floats"]), shared["down"]
                streams = {name: (rows, masks[name]) for name, rows in mine["rows"].items()}
                data = ClientData(
                    samples.x, samples.y, samples.prepare, streams, False, mine["keys"], samples.augment,
                    samples.plain, mine.get("key"),
                )  # fmt: skip
                result = _answer(step(hp, {**down, **mine["message"]}, mine["state"], data))
                if not shared["floats"]:
                    return result
                update, state, metrics, model = (tree_map(_single, tree) for tree in result)
                return update, state, metrics, model

            message = tree_map(lambda leaf, v=variant: leaf[v, 0], extra)
            inputs = {**mine, "message": message, "state": tree_map(lambda leaf: leaf[0], state)}
            with _seeded(own, device):
                if captured is None:
                    answers.append(answer(inputs_of[variant], inputs))
                    continue
                try:
                    update, *rest = calls[variant](answer, inputs, kind)
                except Exception as error:
                    if is_out_of_memory(error) or not inputs_of[variant]["floats"]:
                        raise
                    # The step needs numbers, such as one with an optimiser of PyTorch: it is captured again in each
                    # round. A capture that fails spoils the memory of the others.
                    captured.clear()
                    captured.plain.add(step)
                    prepare(variant, captured, {})
                    update, *rest = calls[variant](answer, inputs, kind)
            if len(hypers) > 1:
                update = tree_map(torch.clone, update)
            # The update of a single variant is added up before the next call; all else is read after it.
            answers.append((update, *(tree_map(torch.clone, tree) for tree in rest)))
        return [tuple(tree_map(lambda leaf: leaf[None], tree) for tree in one) for one in answers]

    return run


def _single(leaf: Tensor) -> Tensor:
    """A number that arithmetic with a float in double precision has widened, in single precision again."""
    return leaf.float() if leaf.dtype == torch.float64 and not leaf.dim() else leaf


def _run_batched(step: ClientStep, hypers: list[Any], broadcasts: list[Tree], samples: Samples, compiled: bool) -> Run:
    device = samples.x.device
    downs = stack(*broadcasts)
    floats = {path: torch.tensor(values, device=device) for path, values in _columns(hypers, compiled).items()}
    # Without the plain values of these floats: a compiled step is recompiled when a plain value changes.
    values = hypers[0].with_floats(dict.fromkeys(floats)).model_dump(warnings=False)
    owner = getattr(step, "__self__", step)

    def run(extra: Tree, states: list[Tree], streams: Any, keys: Tree) -> Any:
        first = keys[""][0] if "" in keys else None
        streams, keys = (_each(tree, lambda leaf: leaf.to(device, non_blocking=True)) for tree in (streams, keys))
        arguments = step, values, samples, len(hypers), downs, floats, extra, stack(*states), streams, keys

        def vmapped(direct: bool) -> list[Answers]:
            with _seeded(first, device), batched_attention():
                return _vmapped(*arguments, direct=direct)

        if compiled:
            return _compiled()(*arguments)
        if step.__name__ not in _needs_transforms.get(owner, ()):
            try:
                return vmapped(direct=True)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
            # Steps have no side effects, so that this one can run again. Errors of its own are then raised again.
            _needs_transforms.setdefault(owner, set()).add(step.__name__)
        return vmapped(direct=False)

    return run


def _seeded(key: Tensor | None, device: torch.device) -> AbstractContextManager[None]:
    """Context in which a model's layers draw random numbers that follow from a client's key; None: they draw none.

    key: on the CPU. device: of the layers.
    """
    if key is None:
        return nullcontext()
    first, second = key.tolist()
    return seeded(first << 32 | second, device)


_needs_transforms: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Names of the steps of an algorithm that have failed within `direct_gradients`."""


def _vmapped(
    step: ClientStep,
    values: dict[str, Any],
    samples: Samples,
    variants: int,
    downs: Tree,
    floats: dict[str, Tensor],
    extra: Tree,
    state: Tree,
    streams: Any,
    keys: Tree,
    direct: bool = False,
) -> list[Answers]:
    """Run a client step for a chunk of clients, for every variant.

    Clients of a variant share its message, and variants share the samples of their clients: the products of evaluation
    are then few and large. direct: see `direct_gradients`.
    """

    def clients(variant: Tensor, down: Tree, floats: dict[str, Tensor], extra: Tree, state: Tree) -> Any:
        hp = _attributes(values, floats)

        def one(extra: Tree, state: Tree, streams: Any, keys: Tree) -> Any:
            keys = dict(keys)
            own = keys.pop("", None)
            data = ClientData(samples.x, samples.y, samples.prepare, streams, True, keys, samples.augment, key=own)
            with direct_gradients() if direct else nullcontext():
                return _answer(step(hp, {**down, **extra}, state, data))

        randomness = "different" if "" in keys else "error"
        return torch.func.vmap(one, randomness=randomness)(extra, state, streams, keys)

    # The variant numbers are included because vmap needs at least one tensor, and all the trees may be empty.
    batched = (torch.arange(variants), downs, floats, extra, state)
    if variants == 1:
        # One level of vmap is enough.
        return [clients(*(tree_map(lambda leaf: leaf[0], tree) for tree in batched))]
    answers = torch.func.vmap(clients, randomness="same" if "" in keys else "error")(*batched)
    return [tuple(tree_map(lambda leaf, v=v: leaf[v], tree) for tree in answers) for v in range(variants)]


@cache
def _compiled() -> Any:
    # One compilation per step and shape of the runs that a process serves. The default limits of 8 and 256 are meant
    # for programs that recompile by mistake.
    allow_recompilations(1024)
    return torch.compile(_vmapped, dynamic=False, fullgraph=True)


def _attributes(values: dict[str, Any], floats: Mapping[str, Tensor], prefix: str = "") -> SimpleNamespace:
    """Hyperparameters as a client step sees them: attributes, nested for sections, some floats as tensors."""

    def seen(path: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _attributes(value, floats, f"{path}.")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            return [seen(f"{path}.{i}", one) for i, one in enumerate(value)]
        return floats.get(path, value)

    return SimpleNamespace(**{name: seen(prefix + name, value) for name, value in values.items()})


def _columns(hypers: list[Any], compiled: bool) -> dict[str, list[float]]:
    """Floats that reach the step as tensors: path -> one value per variant.

    These are the floats in which variants differ and, for a compiled step, all floats except zeros, which switch
    features off: a rate that decays from round to round must not recompile the step.
    """
    every = [hp.floats() for hp in hypers]
    columns = {path: [floats[path] for floats in every] for path in every[0]}
    return {path: values for path, values in columns.items() if len(set(values)) > 1 or (compiled and values[0])}


def _each(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Like tree_map, but also through the (indices, mask) pairs of the streams."""
    if isinstance(tree, tuple):
        return tuple(function(leaf) for leaf in tree)
    if isinstance(tree, dict):
        return {key: _each(child, function) for key, child in tree.items()}
    return function(tree)
