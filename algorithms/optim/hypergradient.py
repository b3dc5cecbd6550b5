"""Hypergradients: products with second derivatives, and solvers for the linear system of a bilevel problem.

The problem is min_x f(x, y_x), y_x = argmin_y g(x, y); its hypergradient (FedBiO, Eq. 2) is

    grad_x f - cross u,    hessian u = grad_y f,    cross = d/dx (grad_y g)^T,    hessian = d/dy (grad_y g)^T.

x, y and u are trees; u has the shape of y. Products use reverse-over-reverse differentiation, which is 2 to 6 times
faster than forward-over-reverse in a loop. All functions run under vmap.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, add, dot, flat, leaves, like, scale, zeros_like
from hedgerow.algorithms.optim.gradient import gradient_and_value

Objective = Callable[[Tree, Tree], Tensor]
"""(x, y) -> a loss, 0-d."""


Product = Callable[[Tree], Tree]
"""A linear map: v -> H v."""


class Slopes(NamedTuple):
    """Gradients by x and by y, and the value."""

    x: Tree
    y: Tree
    value: Tensor


class Products(NamedTuple):
    """Results of one pass over the lower loss: grad_y g, cross u and hessian u."""

    slope: Tree
    cross: Tree
    hessian: Tree


def slopes(f: Objective, x: Tree, y: Tree) -> Slopes:
    """Computes grad_x f and grad_y f."""
    gradient, value = gradient_and_value(lambda z: f(z["x"], z["y"]))({"x": x, "y": y})
    return Slopes(gradient["x"], gradient["y"], value)


def lower_slope(g: Objective, x: Tree, y: Tree, differentiable: bool = False) -> Tree:
    """Computes grad_y g."""
    return gradient_and_value(lambda y: g(x, y), differentiable)(y)[0]


def products(g: Objective, x: Tree, y: Tree, u: Tree) -> Products:
    """Computes grad_y g, cross u and hessian u on the same samples, in one pass."""

    def along(z: Tree) -> tuple[Tensor, Tree]:
        slope = lower_slope(g, z["x"], z["y"], differentiable=True)
        return dot(slope, u), slope

    gradient, _, slope = gradient_and_value(along, aux=True)({"x": x, "y": y})
    return Products(slope, gradient["x"], gradient["y"])


def hessian_product(g: Objective, x: Tree, y: Tree, v: Tree) -> Tree:
    """Computes hessian v, with the shape of y."""
    return gradient_and_value(lambda y: dot(lower_slope(g, x, y, differentiable=True), v))(y)[0]


def gauss_newton_product(outputs: Callable[[Tree], Tensor], fit: Callable[[Tensor], Tensor], y: Tree, v: Tree) -> Tree:
    """J' (d^2 fit) J v of the loss fit(outputs(y)), with the shape of y: positive semidefinite if fit is convex."""
    # J v is the derivative by w of <J' w, v>, which is linear in w.
    here = outputs(y).detach()
    forward = gradient_and_value(
        lambda w: dot(gradient_and_value(lambda y: (outputs(y) * w).sum(), differentiable=True)(y)[0], v)
    )(torch.zeros_like(here))[0]
    curved = gradient_and_value(lambda o: (gradient_and_value(fit, differentiable=True)(o)[0] * forward).sum())(here)[0]
    return gradient_and_value(lambda y: (outputs(y) * curved).sum())(y)[0]


def cross_product(g: Objective, x: Tree, y: Tree, v: Tree) -> Tree:
    """Computes cross v, with the shape of x."""
    return gradient_and_value(lambda x: dot(lower_slope(g, x, y, differentiable=True), v))(x)[0]


def neumann(hessians: Sequence[Product], b: Tree, lr: Any) -> Tree:
    """Neumann series lr sum_k (I - lr H)^k b of len(hessians) + 1 terms, which converges to H^-1 b (FedBiO, Eq. 6).

    hessians: one per factor, each on separate samples if the estimate must be unbiased.
    lr: at most 1 / |H|.
    """
    term = total = b
    for hessian in hessians:
        term = add(term, hessian(term), -lr)
        total = add(total, term)
    return scale(total, lr)


def conjugate_gradient(hessian: Product, b: Tree, steps: int) -> Tree:
    """Computes H^-1 b for a positive definite H; exact after as many steps as H has distinct eigenvalues.

    Further steps after the residual reaches 0 change nothing.
    """
    solution, residual, direction = zeros_like(b), b, b
    size = dot(residual, residual)
    for _ in range(steps):
        image = hessian(direction)
        step = _ratio(size, dot(direction, image))
        solution, residual = add(solution, direction, step), add(residual, image, -step)
        size, before = dot(residual, residual), size
        direction = add(residual, direction, _ratio(size, before))
    return solution


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), 0.0)


def dense_hessian(g: Objective, x: Tree, y: Tree) -> Tensor:
    """Returns H as a dense matrix (d, d), for a few hundred parameters."""
    some = next(leaves(y))
    eye = torch.eye(sum(leaf.numel() for leaf in leaves(y)), dtype=some.dtype, device=some.device)
    columns = torch.func.vmap(lambda v: flat(hessian_product(g, x, y, like(v, y))))(eye)
    return (columns + columns.T) / 2


def solve(hessian: Tensor, b: Tree) -> Tree:
    """Computes H^-1 b for a matrix H (d, d)."""
    return like(torch.linalg.solve(hessian, flat(b)), b)
