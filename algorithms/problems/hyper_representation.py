"""Hyper-representation learning: a backbone such that heads trained on few samples generalise to other samples."""

from dataclasses import dataclass

from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.problems.bilevel_task import BilevelTask


@dataclass(frozen=True)
class HyperRepresentation(BilevelTask):
    """Hyper-representation learning. x: all of the model except its last layer. y: the last layer, trained on the
    training samples.

    head: names of the last layer's parameters.
    """

    head: tuple[str, ...] = ()

    def start(self) -> Tree:
        w = self.init()
        return {
            "x": {name: p for name, p in w.items() if name not in self.head},
            "y": {name: w[name] for name in self.head},
        }

    def upper(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return self.loss({**x, **y}, batch)

    def outputs(self, x: Tree, y: Tree, batch: Batch) -> Tensor:
        return self.logits({**x, **y}, batch.x)

    def fit(self, x: Tree, outputs: Tensor, batch: Batch) -> Tensor:
        return self.criterion(outputs, batch)

    def params(self, x: Tree, y: Tree) -> Params:
        return {**x, **y}
