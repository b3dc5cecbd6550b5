"""A task with two levels."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, tree_map

if TYPE_CHECKING:
    from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.task import Params, Task


class BilevelTask(Task):
    """A task with two levels. x and y are trees."""

    deals_x: ClassVar[bool] = False
    """Whether x falls into parts, each of which concerns one client alone."""

    def start(self) -> Tree:
        """The initial {"x": ..., "y": ...}."""
        raise NotImplementedError

    def upper(self, x: Tree, y: Tree, batch: "Batch") -> Tensor:
        """f^m on a batch; 0-d."""
        raise NotImplementedError

    def outputs(self, x: Tree, y: Tree, batch: "Batch") -> Tensor:
        """What g^m is a convex function of, such as logits."""
        raise NotImplementedError

    def fit(self, x: Tree, outputs: Tensor, batch: "Batch") -> Tensor:
        """That function; 0-d."""
        raise NotImplementedError

    def lower(self, x: Tree, y: Tree, batch: "Batch") -> Tensor:
        """g^m on a batch, without the ridge that makes it strongly convex; 0-d."""
        return self.fit(x, self.outputs(x, y, batch), batch)

    def project(self, x: Tree) -> Tree:
        """The nearest x that is allowed."""
        return x

    def hand_out(self, x: Tree, clients: np.ndarray) -> Tree:
        """Where x is dealt: each client's part, with a leading dimension of clients."""
        raise NotImplementedError

    def padding(self, clients: np.ndarray) -> np.ndarray:
        """How many numbers of each client's part are there only because others have more: (clients,)."""
        return np.zeros(len(clients), int)

    def collect(self, slopes: Tree, clients: np.ndarray, weights: Tensor) -> Tree:
        """The weighted sum of the clients' derivatives by x, or by their parts of it; of x's shape.

        slopes: with a leading dimension of clients. weights (clients,).
        """
        return tree_map(lambda leaf: torch.tensordot(weights.to(leaf), leaf, 1), slopes)

    def params(self, x: Tree, y: Tree) -> Params:
        """The model that is scored."""
        raise NotImplementedError

    def report(self, x: Tree, y: Tree | None, ridge: float) -> dict[str, float]:
        """What else there is to say about a solution. y: None where every client has its own."""
        return {}

    def histograms(self, x: Tree) -> dict[str, dict[str, Tensor]]:
        """Numbers between 0 and 1 whose histograms tell something: what they are -> of whom -> (number,)."""
        return {}
