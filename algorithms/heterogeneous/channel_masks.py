"""FedSep's mask problem (Li, Huang, 2023, Eq. 7), which selects a client's channels, and its derivative (Eq. 8).

a: space -> gate of each channel, (channels,), between 0 and 1.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree, add, dot, sub, tree_map
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.heterogeneous.capacities import masked_loss
from hedgerow.algorithms.nn.submodel import Layout
from hedgerow.algorithms.optim.descent import Adam
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.hypergradient import conjugate_gradient, cross_product, hessian_product

Shares = dict[str, Tensor]


def excess(macs: Tensor, budget: Any) -> Tensor:
    """R(T, c) = log(max(T, c) / c): excess of the multiply-adds T over a budget c. Its gradient is grad T / T, or 0."""
    return (macs / budget).clamp(min=1.0).log()


def masked(layout: Layout, w: Params, a: Shares) -> Params:
    """a (.) w: the parameters of every channel multiplied by its gate."""
    return tree_map(torch.mul, w, layout.mask(a, inputs=False))


class MaskProblem:
    """G(w, a) = L(a (.) w) + weight R(T(a), capacity T_total), on a mini-batch.

    here: classes that the client has, or None; L is masked like the training loss.
    """

    def __init__(self, task: Task, layout: Layout, capacity: Any, weight: Any, here: Tensor | None = None):
        self.task, self.layout, self.weight, self.here = task, layout, weight, here
        self.budget = capacity * layout.macs({})

    def __call__(self, w: Params, a: Shares, batch: Batch) -> Tensor:
        macs = self.layout.macs({space: on.sum() for space, on in a.items()})
        loss = masked_loss(self.task, masked(self.layout, w, a), batch, self.here)
        return loss + self.weight * excess(macs, self.budget)


def descend(loss: Any, phi: Params, batches: Iterable[Batch], lr: Any, decay: float = 0.01) -> Params:
    """Takes AdamW steps (Loshchilov, Hutter, 2019) on loss(phi, batch), one per batch that is not padding."""
    gradient, adam = gradient_and_value(loss), Adam()
    for batch in batches:
        direction = dict(zip(phi, adam(gradient(phi, batch)[0].values()), strict=True))
        step = lr * batch.active
        phi = tree_map(lambda p, d, step=step: p - step * (d + decay * p), phi, direction)
    return phi


def most(a: Mapping[str, Tensor], first: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Channels with the largest gates, ascending, as many per space as in `first`; ties go to the first channel."""
    return {
        space: a[space].argsort(descending=True, stable=True)[channels].sort().values
        for space, channels in first.items()
    }


def encode(g: Any, layout: Layout, w: Params, a: Shares, moved: Params, steps: int, damping: Any) -> Tree:
    """Enc{v} = -a (.) v - grad_w a (w (.) v) with grad_w a = -grad_wa G (grad_aa G + damping)^-1 (Eq. 8).

    a minimises G in the interior of [0, 1]. g: (w, a) -> G. steps: number of conjugate gradient steps.
    """
    per_channel = gradient_and_value(lambda a: dot(masked(layout, w, a), moved))(a)[0]

    def curvature(u: Tree) -> Tree:
        return add(hessian_product(g, w, a, u), u, damping)

    solution = conjugate_gradient(curvature, per_channel, steps)
    return sub(cross_product(g, w, a, solution), masked(layout, moved, a))
