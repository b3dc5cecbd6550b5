"""Newton's method: exact solution of a small local problem, as assumed by the analyses of the methods."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.optim.gradient import gradient_and_value

STEPS = 12
HALVINGS = 6

DAMPING = 16
"""Damping of a singular Hessian, in machine epsilons of its mean eigenvalue."""


def newton(
    loss: Callable[[Params], Tensor],
    start: Params,
    linear: Params | None,
    proximal: tuple[Any, Params] | None,
    weight_decay: Any,
    batched: bool,
) -> tuple[Params, Tensor]:
    """Stationary point of loss(w) + <linear, w> + weight/2 ||w - centre||^2 + weight_decay/2 ||w||^2, from `start`.

    proximal: (weight, centre).

    Each step is halved until the norm of the gradient falls, so that convex problems converge from any start. In the
    loop form it stops at numerical precision or when no step helps; batched, where control flow may not depend on
    values, it takes all steps. The Hessian is a dense matrix: for a few hundred parameters in total. Returns the point
    and the loss there (0-d).
    """
    shapes = {name: p.shape for name, p in start.items()}
    ends = list(accumulate(p.numel() for p in start.values()))

    def tree(flat: Tensor) -> Params:
        pieces = zip(shapes.items(), [0, *ends], ends, strict=False)
        return {name: flat[begin:end].reshape(shape) for (name, shape), begin, end in pieces}

    slope_of = gradient_and_value(lambda flat: loss(tree(flat)), differentiable=True)

    def gradient(flat: Tensor) -> Tensor:
        slope = slope_of(flat)[0] + weight_decay * flat
        if linear is not None:
            slope = slope + _flat(linear, shapes)
        if proximal is not None:
            slope = slope + proximal[0] * (flat - _flat(proximal[1], shapes))
        return slope

    def hessian(flat: Tensor) -> Tensor:
        row = gradient_and_value(lambda flat, direction: gradient(flat) @ direction)
        directions = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
        return torch.func.vmap(lambda direction: row(flat, direction)[0])(directions)

    w = _flat(start, shapes)
    slope = gradient(w)
    for _ in range(STEPS):
        if not batched and slope.norm() <= 16 * torch.finfo(w.dtype).eps * (1 + w.norm()):
            break
        step = _newton_step(hessian(w), slope, batched)
        origin = w
        for halving in range(HALVINGS):
            candidate = origin - 0.5**halving * step
            new_slope = gradient(candidate)
            # False if nothing is finite.
            improves = new_slope.norm() < slope.norm()
            w, slope = torch.where(improves, candidate, w), torch.where(improves, new_slope, slope)
            if not batched and improves:
                break
        if not batched and not improves:
            break
    return tree(w), loss(tree(w))


def _newton_step(hessian: Tensor, slope: Tensor, batched: bool) -> Tensor:
    """Newton step. A singular Hessian, such as that of a feature that is always 0, is made regular: DAMPING machine
    epsilons of its mean eigenvalue are added to its diagonal.
    """
    step = torch.linalg.solve_ex(hessian, slope).result
    if not batched and step.isfinite().all():
        return step
    damping = DAMPING * torch.finfo(hessian.dtype).eps * hessian.diagonal().mean()
    regular = hessian + damping * torch.eye(len(slope), dtype=hessian.dtype, device=hessian.device)
    return torch.where(step.isfinite().all(), step, torch.linalg.solve_ex(regular, slope).result)


def _flat(tree: Params, names: Any) -> Tensor:
    return torch.cat([tree[name].reshape(-1) for name in names])
