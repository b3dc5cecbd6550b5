"""Partial aggregates: weighted sums in float64, so that it does not matter how clients are grouped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.messages import Predictions, Reduction
from hedgerow.algorithms.core.parts import ContractError
from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map

WIDENED, WIDENED_GPU = 2**16, 2**24
"""Number of values that are converted to float64 at a time: half a megabyte, and 128 MB on a GPU."""

HELD_BACK = 2**22
"""Number of values of updates that are held back on a GPU for each variant, to be added at once: 16 MB."""


def finite_clients(up: Tree, count: int) -> Tensor:
    """Mask (C,) of the clients of a chunk that sent only finite numbers, on the device of the update."""
    # The sum of a row is finite exactly when its entries are, unless they are so large that the client diverged anyway.
    every = list(leaves(up))
    floats = [leaf for leaf in every if leaf.is_floating_point()]
    device = next((leaf.device for leaf in every), torch.device("cpu"))
    if not floats:
        return torch.ones(count, dtype=torch.bool, device=device)
    sums = [leaf.reshape(count, -1).sum(1, dtype=_sum_type(leaf)).float() for leaf in floats]
    return torch.stack(sums).sum(0).isfinite()


def _sum_type(leaf: Tensor) -> torch.dtype | None:
    """Type of a sum; None: torch's own. In half precision it would overflow."""
    return torch.float32 if leaf.is_floating_point() and leaf.element_size() < 4 else None


Content = tuple[float, float]
"""Sum of a tree's numbers, and of the first of each leaf."""


def content_of(tree: Tree) -> Content:
    """Content of a tree on the CPU. The sum is finite when the numbers are, unless they are extremely large."""
    every = [leaf for leaf in leaves(tree) if leaf.numel() and not leaf.is_complex()]
    total = sum((float(leaf.sum(dtype=_sum_type(leaf))) for leaf in every), 0.0)
    return total, sum((float(leaf[(0,) * leaf.dim()]) for leaf in every), 0.0)


def check_no_reuse(earlier: Iterable[tuple[Tree, Content]], new: Tree) -> None:
    """Raise ContractError if a step has changed its result for an earlier client, since it returns the same memory for
    each.

    earlier: results for some clients, with their contents at that time. new: result for a later client.
    """
    memory = {leaf.data_ptr() for leaf in leaves(new) if leaf.numel()}
    for tree, content in earlier:
        # Two clients may have the same constant. NaN is no change.
        if any(leaf.data_ptr() in memory for leaf in leaves(tree)) and str(content_of(tree)) != str(content):
            raise ContractError(
                "a step returns memory that the step of a later client changes; return clones", "algorithm.name"
            )


TOGETHER, WAITING_BYTES = 4, 2**25
"""Number of clients, and size of their updates, from which updates that wait are added in a loop: the sums, in float64,
are read and written once for all of them, but the next client cannot use the memory of updates that wait.
"""


@dataclass
class FlatSum:
    """Weighted sum of updates on a GPU: one vector in float64, since each operation on a leaf would be a launch.

    Rows are held back until there are many of them, so that small models need few launches; `settle` adds the last.
    """

    shapes: Tree
    vector: Tensor
    held: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    """Rows, their weights, and which of them are finite."""
    numbers: int = 0
    """Number of values in the rows that are held back."""

    @classmethod
    def zero(cls, up: Tree) -> "FlatSum":
        """Sum of no rows of a tree."""
        size = sum(leaf[0].numel() for leaf in leaves(up))
        first = next(leaves(up))
        shapes = tree_map(lambda leaf: leaf.shape[1:], up)
        return cls(shapes, torch.zeros(size, dtype=torch.float64, device=first.device))

    def add(self, up: Tree, weights: Tensor) -> Tensor:
        """Add the weighted rows of a tree that are finite; returns which are. Nothing waits for the GPU."""
        # In float32, large integers would be rounded.
        every = [leaf if leaf.is_floating_point() else leaf.double() for leaf in leaves(up)]
        rows = torch.cat([leaf.reshape(len(leaf), leaf[0].numel()) for leaf in every], 1)
        finite = rows.sum(1, dtype=_sum_type(rows)).isfinite() & weights.isfinite()
        self.held.append((rows, weights, finite))
        self.numbers += rows.numel()
        if self.numbers >= HELD_BACK:
            self.settle()
        return finite

    def settle(self) -> None:
        """Add the rows that are held back."""
        if not self.held:
            return
        parts: Any = self.held[0] if len(self.held) == 1 else map(torch.cat, zip(*self.held, strict=True))
        rows, weights, finite = parts
        self.held.clear()
        self.numbers = 0
        weights, finite = torch.where(finite, weights, 0.0), finite[:, None]
        size = max(1, WIDENED_GPU // len(rows))
        for piece, some in zip(self.vector.split(size), rows.split(size, dim=1), strict=True):
            # Zero times infinity is NaN.
            piece += weights @ torch.where(finite, some, 0).double()

    def tree(self, vector: Any) -> Tree:
        """Leaves of a vector, as views."""
        start = 0

        def leaf(shape: torch.Size) -> Any:
            nonlocal start
            start += shape.numel()
            return vector[start - shape.numel() : start].reshape(shape)

        return tree_map(leaf, self.shapes)


@dataclass
class PartialAggregate:
    """Message from a worker to the executor: one shard's part of an aggregate."""

    reduce: Reduction
    total: Tree | FlatSum | None = None
    """Weighted sum of the updates in float64, unless they are stacked."""
    weight: float = 0.0
    stacks: list[Tree] = field(default_factory=list)
    contributed: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """For each client of the shard: whether its update was finite and entered the aggregate."""
    metrics: dict[str, np.ndarray] = field(default_factory=dict)
    """One number per client of the shard, by name."""
    up_scalars: int = 0
    up_bytes: int = 0
    gpu_peak_mb: float = 0.0
    """Peak GPU memory of the worker so far; 0 without a GPU."""
    client_model_delta: Tree | None = None
    """Sum of the changes of the clients' own models since they last took part, where they are tracked; float64."""
    predictions: list[Predictions | None] = field(default_factory=list)
    """Predictions on each client's samples, if the step returns them; None for a client without samples."""
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """For each client of the shard: whether the step has written a new state to its row."""
    objects: list[Any] = field(default_factory=list)
    """References to the new states, where these are objects of Ray."""
    is_apart: bool = False
    """Whether `total` is an object of Ray of its own."""
    scratch: list[tuple[np.ndarray, Tree]] = field(default_factory=list)
    """Entries that the step has added to the states of clients, for the rest of the round: positions of the clients in
    the shard, and leaves with one row for each."""
    _chunks: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = field(default_factory=list, init=False)
    """Source of `weight`, `contributed` and `metrics`, see `to_wire`."""
    _waiting: list[tuple[Tree, float, Content]] = field(default_factory=list, init=False)
    """Updates of single clients with their weights and contents, which are added several at a time."""

    def add(self, up: Tree, weights: Tensor, metrics: dict[str, Tensor] | None = None) -> Tensor:
        """Add a chunk of C clients; returns which of them sent only finite numbers and have a finite weight, (C,).

        up: leaves (C, ...). weights: (C,) float64. metrics: each (C,). All are on the device of the clients. On a GPU,
        only `stack` waits for them.

        Clients that diverged are removed before the weighting: a zero weight is not enough, since 0 * NaN is NaN.
        """
        first = next(leaves(up), None)
        if first is None and self.reduce != "stack":
            finite = weights.isfinite()
        elif first is not None and first.device.type != "cpu" and self.reduce != "stack":
            total = self.total = self.total if isinstance(self.total, FlatSum) else FlatSum.zero(up)
            finite = total.add(up, weights)
        else:
            finite = self._add(up, weights)
        self._chunks.append((finite, weights, {name: values.detach() for name, values in (metrics or {}).items()}))
        sizes = [(leaf.numel(), leaf.element_size()) for leaf in leaves(up)]
        self.up_scalars += sum(numbers for numbers, _ in sizes)
        self.up_bytes += sum(numbers * size for numbers, size in sizes)
        return finite

    def _add(self, up: Tree, weights: Tensor) -> Tensor:
        """Add a chunk on the CPU, or to a stack; returns which clients were added, (C,)."""
        if len(weights) == 1 and self.reduce != "stack":
            return torch.tensor([self._add_one(up, float(weights))])
        finite = finite_clients(up, len(weights))
        finite = finite & weights.isfinite().to(finite.device)
        if self.reduce == "stack":
            self.stacks.append(tree_map(lambda leaf: _to_numpy(leaf[finite.to(leaf.device)]), up))
        else:
            if not finite.all():
                up, weights = _finite_rows(up, finite), weights[finite]
            self._add_waiting()
            assert not isinstance(self.total, FlatSum), "clients of one part are on one device"
            self.total = _added(self.total, up, weights)
        return finite

    def _add_one(self, up: Tree, weight: float) -> bool:
        """Add a client on the CPU, later with others; returns whether it is finite."""
        check_no_reuse(((tree, content) for tree, _, content in self._waiting), up)
        content = content_of(up)
        if not isfinite(content[0]) or not isfinite(weight):
            return False
        self._waiting.append((up, weight, content))
        size = sum(leaf.nbytes for leaf in leaves(up))
        if len(self._waiting) == TOGETHER or len(self._waiting) * size >= WAITING_BYTES:
            self._add_waiting()
        return True

    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        trees, weights, _ = zip(*self._waiting, strict=True)
        self._waiting.clear()
        if self.total is None:
            self.total = _zeros(trees[0])
        for total, *parts in zip(leaves(self.total), *map(leaves, trees), strict=True):
            sums, rows = total.view(-1), [part.reshape(-1) for part in parts]
            for start in range(0, len(sums), WIDENED):
                piece = sums[start : start + WIDENED]
                for row, weight in zip(rows, weights, strict=True):
                    piece.add_(row[start : start + WIDENED], alpha=weight)

    def add_client_model_delta(self, delta: Tree, finite: Tensor) -> None:
        """Add the changes of the models of a chunk of clients: leaves (C, ...), finite (C,)."""
        ones = torch.ones(int(finite.sum()), dtype=torch.float64)
        delta = delta if finite.all() else _finite_rows(delta, finite)
        self.client_model_delta = _added(self.client_model_delta, delta, ones)

    def add_predictions(self, predictions: dict[str, Tensor]) -> None:
        """Add the predictions of a chunk of clients, under `PREDICTIONS` in the metrics: leaves (C, samples, ...)."""
        names = [name for name in Predictions._fields if name in predictions]
        every = (predictions[name].detach().cpu() for name in ("real", *names))
        for real, *values in zip(*every, strict=True):
            self.predictions.append(Predictions(*(value[real].numpy() for value in values)))

    def to_wire(self, keeps_total: bool = False) -> "PartialAggregate":
        """Copy with NumPy leaves: torch tensors cost several times more in Ray's serialisation.

        keeps_total: the sum stays on the GPU.
        """
        self._add_waiting()
        total, delta = self.total, None if self.client_model_delta is None else to_host(self.client_model_delta)
        if isinstance(total, FlatSum):
            total.settle()
            total = total if keeps_total else total.tree(_to_numpy(total.vector))
        elif total is not None:
            total = to_host(total)
        metrics = [metrics for _, _, metrics in self._chunks]
        finite = to_cpu([mask for mask, _, _ in self._chunks])
        weights = to_cpu([some for _, some, _ in self._chunks])
        return replace(
            self,
            total=total,
            weight=sum((float(some[mask].sum()) for some, mask in zip(weights, finite, strict=True)), 0.0),
            client_model_delta=delta,
            contributed=torch.cat(list(finite)).numpy() if finite else self.contributed,
            metrics={
                name: torch.cat([one[name] for one in metrics if name in one]).cpu().double().numpy()
                for name in dict.fromkeys(name for one in metrics for name in one)
            }
            or self.metrics,
        )


SumUp = Callable[[list[Any], float], Tree]
"""Scaled sum of trees, as `sum_trees` computes it."""


def combine(partials: list[PartialAggregate], order: np.ndarray, sum_up: SumUp | None = None) -> Tree:
    """Aggregated update (float32 torch tensors) of the shards' parts.

    order: for a stack, the position of each contribution in the order of the exchange's clients. The parts lose their
    stacks, which would take as much memory as the result. sum_up: None: `sum_trees`.
    """
    if partials[0].reduce == "stack":
        stacks = [stack for partial in partials for stack in partial.stacks]
        for partial in partials:
            partial.stacks.clear()
        return _in_order(stacks, np.argsort(np.argsort(order)))
    weight = sum(partial.weight for partial in partials)
    if partials[0].reduce == "mean" and weight == 0:
        raise ContractError("the clients' weights of an exchange are all 0, so that they have no mean")
    scale = 1.0 / weight if partials[0].reduce == "mean" else 1.0
    return (sum_up or sum_trees)([partial.total for partial in partials if partial.total is not None], scale)


def _in_order(stacks: list[Any], ranks: np.ndarray) -> Any:
    """One stack of the rows of all stacks, row i at ranks[i]. Each stack is freed as soon as it is copied."""
    if isinstance(stacks[0], dict):
        return {key: _in_order([stack.pop(key) for stack in stacks], ranks) for key in list(stacks[0])}
    result = np.empty((len(ranks), *stacks[0].shape[1:]), stacks[0].dtype)
    start = 0
    stacks.reverse()
    while stacks:
        stack = stacks.pop()
        result[ranks[start : start + len(stack)]] = stack
        start += len(stack)
    return torch.from_numpy(result)


def pairwise(parts: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Sum of neighbours, then of neighbouring sums, and so on: an order that fits a tree of processes."""
    while len(parts) > 1:
        pairs = [add(parts[i], parts[i + 1]) for i in range(0, len(parts) - 1, 2)]
        parts = [*pairs, parts[-1]] if len(parts) % 2 else pairs
    return parts[0]


def sum_trees(trees: list[Any], scale: float = 1.0) -> Tree:
    """Scaled sum of trees of float64 arrays, or of sums on a GPU, pairwise, as float32 tensors on the CPU."""

    def added(*parts: np.ndarray) -> Tensor:
        result, flat = np.empty(parts[0].shape, np.float32), [part.reshape(-1) for part in parts]
        for start in range(0, result.size, WIDENED):
            # In pieces that stay in a core's cache while they are float64.
            piece = slice(start, start + WIDENED)
            total = pairwise([part[piece] for part in flat], np.add)
            np.multiply(total, scale, out=result.reshape(-1)[piece], casting="same_kind")
        return torch.from_numpy(result)

    if trees and isinstance(trees[0], FlatSum):
        # From memory that is not paged, the next exchange sends the same numbers back without waiting.
        result = trees[0].tree((pairwise([total.vector for total in trees], torch.add) * scale).float())
        host = tree_map(lambda leaf: torch.empty(leaf.shape, pin_memory=True).copy_(leaf, non_blocking=True), result)
        torch.cuda.synchronize()
        return host
    return tree_map(added, trees[0], *trees[1:]) if trees else {}


def _finite_rows(tree: Tree, finite: Tensor) -> Tree:
    return tree_map(lambda leaf: leaf[finite.to(leaf.device)], tree)


def to_cpu(parts: list[Tensor]) -> Sequence[Tensor]:
    """Copies of vectors of one device on the CPU, in one transfer."""
    return torch.cat(parts).cpu().split([len(part) for part in parts]) if parts else ()


def _zeros(tree: Tree) -> Tree:
    """Sum of no rows of a tree."""
    return tree_map(lambda leaf: leaf.new_zeros(leaf.shape[1:], dtype=torch.float64), tree)


def _added(total: Tree | None, tree: Tree, weights: Tensor) -> Tree:
    """Sum so far (None: zero) after the weighted rows of a tree have been added to it in place."""
    if total is None:
        total = _zeros(tree)
    tree_map(lambda sums, leaf: _add_weighted(sums, leaf, weights.to(leaf.device)), total, tree)
    return total


def _add_weighted(total: Tensor, leaf: Tensor, weights: Tensor) -> None:
    """total += weights @ leaf, in pieces that stay in a core's cache while they are converted to float64."""
    sums, rows = total.view(-1), leaf.reshape(len(leaf), total.numel())
    size = max(1, (WIDENED if leaf.device.type == "cpu" else WIDENED_GPU) // max(1, len(leaf)))
    for piece, widened in zip(sums.split(size), rows.split(size, dim=1), strict=True):
        piece += weights @ widened.double()


def to_host(tree: Tree, at_once: bool | None = None) -> Tree:
    """Copy with NumPy leaves. From a GPU, all leaves of equal type travel in one transfer.

    at_once: None: if the leaves are on a GPU.
    """
    every = list(leaves(tree))
    if at_once is None:
        at_once = any(leaf.device.type != "cpu" for leaf in every)
    if not at_once or not every or len({leaf.dtype for leaf in every}) > 1:
        return tree_map(_to_numpy, tree)
    together, start = _to_numpy(torch.cat([leaf.reshape(-1) for leaf in every])), 0

    def next_leaf(leaf: Tensor) -> np.ndarray:
        nonlocal start
        start += leaf.numel()
        return together[start - leaf.numel() : start].reshape(leaf.shape)

    return tree_map(next_leaf, tree)


def _to_numpy(leaf: Any) -> np.ndarray:
    # NumPy has no bfloat16.
    return (leaf.float() if leaf.dtype == torch.bfloat16 else leaf).detach().cpu().numpy()
