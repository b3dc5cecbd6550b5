"""Base class of bilevel tasks."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, tree_map

if TYPE_CHECKING:
    from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.task import Params, Task


class BilevelTask(Task):
    """A task with an upper and a lower level. x and y are trees."""

    deals_x: ClassVar[bool] = False
    """Whether x consists of parts that concern only one client each."""

    def start(self) -> Tree:
        """Returns the initial {"x": ..., "y": ...}."""
        raise NotImplementedError

    def upper(self, x: Tree, y: Tree, batch: "Batch") -> Tensor:
        """Upper loss f^m on a batch; 0-d."""
        raise NotImplementedError

    def outputs(self, x: Tree, y: Tree, batch: "Batch") -> Tensor:
        """Outputs, such as logits; g^m is a convex function of them."""
        raise NotImplementedError

    def fit(self, x: Tree, outputs: Tensor, batch: "Batch") -> Tensor:
        """The convex function of the outputs that defines g^m; 0-d."""
        raise NotImplementedError

    def lower(self, x: Tree, y: Tree, batch: "Batch") -> Tensor:
        """Lower loss g^m on a batch, without the ridge that makes it strongly convex; 0-d."""
        return self.fit(x, self.outputs(x, y, batch), batch)

    def project(self, x: Tree) -> Tree:
        """Returns the nearest feasible x."""
        return x

    def hand_out(self, x: Tree, clients: np.ndarray) -> Tree:
        """Returns each client's part of x if `deals_x`, with a leading dimension of clients."""
        raise NotImplementedError

    def padding(self, clients: np.ndarray) -> np.ndarray:
        """Number of entries of each client's part that only pad it to the size of the largest part: (clients,)."""
        return np.zeros(len(clients), int)

    def collect(self, slopes: Tree, clients: np.ndarray, weights: Tensor) -> Tree:
        """Weighted sum of the clients' derivatives by x, or by their parts of x, in the shape of x.

        slopes: derivatives with a leading dimension of clients.
        weights: (clients,).
        """
        return tree_map(lambda leaf: torch.tensordot(weights.to(leaf), leaf, 1), slopes)

    def params(self, x: Tree, y: Tree) -> Params:
        """Returns the model to score."""
        raise NotImplementedError

    def report(self, x: Tree, y: Tree | None, ridge: float) -> dict[str, float]:
        """Returns additional metrics of a solution. y: None if every client has its own."""
        return {}

    def histograms(self, x: Tree) -> dict[str, dict[str, Tensor]]:
        """Returns values in [0, 1] to plot as histograms: title -> group -> (number,)."""
        return {}
