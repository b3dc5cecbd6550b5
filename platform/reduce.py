"""Reductions: weighted sums in double precision, so that the result does not depend on how clients are grouped."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.messages import Reduction
from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.platform.heartbeat import beat

WIDENED = 2**16
"""Numbers that are widened to float64 at a time: half a megabyte."""


def finite_clients(up: Tree, count: int) -> Tensor:
    """(C,) bool: which clients of a chunk sent only finite numbers."""
    finite = torch.ones(count, dtype=torch.bool)
    for leaf in leaves(up):
        if leaf.is_floating_point():
            # A row's sum is finite just when its entries are, unless they are so large that the client diverged anyway.
            finite &= torch.isfinite(leaf.reshape(count, -1).sum(1)).cpu()
    return finite


@dataclass
class Partial:
    """One worker's share of a reduction: a sum in float64, or the stacked answers."""

    kind: Reduction
    tree: Tree | None = None
    weight: float = 0.0
    stacks: list[Tree] = field(default_factory=list)

    def add(self, up: Tree, weights: Tensor, finite: Tensor) -> None:
        """Add a chunk: leaves (C, ...), weights (C,) float64, finite (C,).

        A client that diverged is taken out before the weighting: a zero weight would not do, 0 * NaN is NaN.
        """
        if self.kind == "stack":
            self.stacks.append(tree_map(lambda leaf: _to_numpy(leaf[finite.to(leaf.device)]), up))
            return
        if not finite.all():
            up, weights = tree_map(lambda leaf: leaf[finite.to(leaf.device)], up), weights[finite]
        self.weight += float(weights.sum())
        if self.tree is None:
            self.tree = tree_map(lambda leaf: leaf.new_zeros(leaf.shape[1:], dtype=torch.float64), up)
        tree_map(lambda total, leaf: _add_weighted(total, leaf, weights.to(leaf.device)), self.tree, up)

    def to_wire(self) -> "Partial":
        """The same with NumPy leaves: torch tensors cost several times more in Ray's serialisation."""
        tree = None if self.tree is None else tree_map(_to_numpy, self.tree)
        return Partial(self.kind, tree, self.weight, self.stacks)


def combine(partials: list[Partial], order: np.ndarray) -> Tree:
    """The reduced tree (float32 torch tensors) of the workers' shares, added in the order of the workers.

    order: for a stack, the position of each kept answer in the order of the exchange's clients.
    """
    kind = partials[0].kind
    if kind == "stack":
        stacks = [stack for partial in partials for stack in partial.stacks]
        back = np.argsort(order)
        return tree_map(lambda *parts: torch.from_numpy(np.concatenate(parts)[back]), stacks[0], *stacks[1:])
    trees = [partial.tree for partial in partials if partial.tree is not None]
    weight = sum(partial.weight for partial in partials)
    scale = 1.0 / weight if kind == "mean" else 1.0

    def added(*parts: np.ndarray) -> Tensor:
        beat()
        return torch.from_numpy(np.asarray(sum(parts) * scale)).float()

    return tree_map(added, trees[0], *trees[1:])


def _add_weighted(total: Tensor, leaf: Tensor, weights: Tensor) -> None:
    """total += weights @ leaf, in pieces that stay in a core's cache while they are widened to float64."""
    sums, rows = total.view(-1), leaf.reshape(len(leaf), total.numel())
    size = max(1, WIDENED // max(1, len(leaf))) if leaf.device.type == "cpu" else max(1, total.numel())
    for piece, widened in zip(sums.split(size), rows.split(size, dim=1), strict=True):
        piece += weights @ widened.double()


def _to_numpy(leaf: Any) -> np.ndarray:
    return leaf.detach().cpu().numpy()
