"""Derivatives of both levels on a client's mini-batches, with counts of what they cost."""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import SPENT
from hedgerow.algorithms.core.pytree import Tree, add, count, dot, sub
from hedgerow.algorithms.optim.hypergradient import (
    Objective,
    Slopes,
    cross_product,
    dense_hessian,
    gauss_newton_product,
    hessian_product,
    lower_slope,
    neumann,
    products,
    slopes,
)
from hedgerow.algorithms.problems.bilevel_task import BilevelTask


class MiniBatch(NamedTuple):
    """Mini-batches of one step."""

    upper: Batch
    lower: Batch
    cross: Batch
    hessians: tuple[Batch, ...]


class Derivatives:
    """Derivatives of both levels on a client's mini-batches, with counts of what they cost.

    Counts gradients of f and g and Jacobian- and Hessian-vector products, one per sample. These counts, `spent`, become
    metrics of the client step.
    """

    def __init__(self, task: BilevelTask, hp: Any):
        self.task, self.hp = task, hp
        self.spent: dict[str, Any] = {}

    def upper(self, batch: Batch) -> Objective:
        return lambda x, y: self.task.upper(x, y, batch)

    def lower(self, batch: Batch) -> Objective:
        return lambda x, y: self.task.lower(x, y, batch) + 0.5 * self.hp.ridge * dot(y, y)

    def upper_slopes(self, z: Tree, batch: Batch) -> Slopes:
        """grad_x f, grad_y f, and f."""
        self._count("gradients_f", batch)
        return slopes(self.upper(batch), z["x"], z["y"])

    def lower_slope(self, z: Tree, batch: Batch) -> Tree:
        """grad_y g."""
        self._count("gradients_g", batch)
        return lower_slope(self.lower(batch), z["x"], z["y"])

    def cross(self, z: Tree, batch: Batch, v: Tree) -> Tree:
        """grad_xy g v."""
        self._count("jacobian_products", batch)
        return cross_product(self.lower(batch), z["x"], z["y"], v)

    def hessian(self, z: Tree, batch: Batch, v: Tree) -> Tree:
        """grad_yy g v."""
        self._count("hessian_products", batch)
        return hessian_product(self.lower(batch), z["x"], z["y"], v)

    def curvature(self, z: Tree, batch: Batch, v: Tree) -> Tree:
        """grad_yy g v, or the Gauss-Newton product, as selected by `hp.curvature`; plus `hp.damping` v."""
        if self.hp.curvature == "hessian":
            product = self.hessian(z, batch, v)
        else:
            self._count("hessian_products", batch)
            x, y = z["x"], z["y"]
            product = gauss_newton_product(
                lambda y: self.task.outputs(x, y, batch), lambda o: self.task.fit(x, o, batch), y, v
            )
            product = add(product, v, self.hp.ridge)
        return add(product, v, self.hp.damping)

    def directions(self, z: Tree, draw: MiniBatch) -> tuple[Tree, Tensor]:
        """{"x": N(u), "y": G, "u": R(u)} at z = {"x", "y", "u"}, and f (FedBiO, section 2)."""
        direct, b, value = self.upper_slopes(z, draw.upper)
        if draw.cross is draw.lower:
            for name in ("gradients_g", "jacobian_products", "hessian_products"):
                self._count(name, draw.lower)
            slope, cross, hessian = products(self.lower(draw.lower), z["x"], z["y"], z["u"])
        else:
            slope = self.lower_slope(z, draw.lower)
            cross, hessian = self.cross(z, draw.cross, z["u"]), self.hessian(z, draw.hessians[0], z["u"])
        return {"x": sub(direct, cross), "y": slope, "u": sub(hessian, b)}, value

    def hypergradient(self, z: Tree, draw: MiniBatch) -> tuple[Tree, Tensor]:
        """N(u) only, and f."""
        direct, _, value = self.upper_slopes(z, draw.upper)
        return sub(direct, self.cross(z, draw.cross, z["u"])), value

    def residual(self, z: Tree, draw: MiniBatch) -> Tree:
        """R(u) only."""
        return sub(self.hessian(z, draw.hessians[0], z["u"]), self.upper_slopes(z, draw.upper).y)

    def local_hypergradient(self, z: Tree, draw: MiniBatch) -> tuple[Tree, Tensor]:
        """Phi at z = {"x", "y"}, by the Neumann series of the client's own Hessian, and f (FedBiO, Eq. 6)."""
        direct, b, value = self.upper_slopes(z, draw.upper)
        u = neumann([partial(self.hessian, z, batch) for batch in draw.hessians], b, self.hp.u_lr)
        return sub(direct, self.cross(z, draw.cross, u)), value

    def local_directions(self, z: Tree, draw: MiniBatch) -> tuple[Tree, Tensor]:
        """{"x": Phi, "y": G} at z = {"x", "y"}, and f."""
        slope, value = self.local_hypergradient(z, draw)
        return {"x": slope, "y": self.lower_slope(z, draw.lower)}, value

    def dense_hessian(self, z: Tree, batch: Batch) -> Tensor:
        """grad_yy g as a matrix (d, d)."""
        self._count("hessian_products", batch, count(z["y"]))
        return dense_hessian(self.lower(batch), z["x"], z["y"])

    def metrics(self, values: list[Tensor]) -> dict[str, Any]:
        """Mean of f over the steps, and the counts."""
        loss = {"loss": torch.stack(values).mean()} if values else {}
        return loss | {SPENT + name: number for name, number in self.spent.items()}

    def _count(self, name: str, batch: Batch, times: int = 1) -> None:
        samples = torch.tensor(float(len(batch.y)), device=batch.y.device) if batch.mask is None else batch.mask.sum()
        self.spent[name] = self.spent.get(name, 0.0) + times * samples
