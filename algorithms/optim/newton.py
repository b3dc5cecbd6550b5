"""Newton's method: exact solution of a small local problem, as assumed by the analyses of the methods."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import flat, like
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

    def vector(tree: Params) -> Tensor:
        return flat({name: tree[name] for name in start})

    slope_of = gradient_and_value(lambda w: loss(like(w, start)), differentiable=True)

    def gradient(w: Tensor) -> Tensor:
        slope = slope_of(w)[0] + weight_decay * w
        if linear is not None:
            slope = slope + vector(linear)
        if proximal is not None:
            slope = slope + proximal[0] * (w - vector(proximal[1]))
        return slope

    def hessian(w: Tensor) -> Tensor:
        row = gradient_and_value(lambda w, direction: gradient(w) @ direction)
        directions = torch.eye(len(w), dtype=w.dtype, device=w.device)
        return torch.func.vmap(lambda direction: row(w, direction)[0])(directions)

    w = flat(start)
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
    return like(w, start), loss(like(w, start))


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
