"""From a gradient to a step: a chain of small transformations, the same for one client in a loop and for many batched.

A transformation maps (direction, parameters), two lists of tensors, to a direction, and may change the given one in
place.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import enabled
from hedgerow.algorithms.optim.in_place import accumulate_, add_, apart, is_plain, lerp_, mul_, norms, plus, pull_

Tensors = list[Tensor]
Transformation = Callable[[Tensors, Tensors], Tensors]
Update = Callable[[Tensors, Tensors, Any], Tensors]
"""(parameters, direction, rate) -> parameters, which may be changed in place."""


class DescentStep(Protocol):
    """One step: returns the parameters after it. in_place: they may have the memory of those before it."""

    def __call__(self, w: Tensors, gradient: Iterable[Tensor], rate: Any, in_place: bool = True) -> Tensors: ...


class Adam:
    """Converts gradients to Adam's directions (Kingma, Ba, "Adam", 2015, algorithm 1)."""

    DECAY, SECOND_DECAY, TINY = 0.9, 0.999, 1e-8

    def __init__(self) -> None:
        self.moments: list[tuple[Tensor, Tensor]] = []
        self.steps = 0

    def __call__(self, gradient: Iterable[Tensor], w: Any = None) -> Tensors:
        gradient = list(gradient)
        self.moments = self.moments or [(torch.zeros_like(g), torch.zeros_like(g)) for g in gradient]
        self.steps += 1
        self.moments = [
            (m + (1 - self.DECAY) * (g - m), v + (1 - self.SECOND_DECAY) * (g * g - v))
            for (m, v), g in zip(self.moments, gradient, strict=True)
        ]
        first, second = 1 - self.DECAY**self.steps, 1 - self.SECOND_DECAY**self.steps
        return [m / first / ((v / second).sqrt() + self.TINY) for m, v in self.moments]


class Momentum:
    """Heavy-ball momentum. momenta: those before the first step; empty: it starts with the first direction."""

    def __init__(self, beta: Any, momenta: Iterable[Tensor] = ()):
        self.beta, self.momenta = beta, list(momenta)

    def __call__(self, direction: Tensors, w: Tensors) -> Tensors:
        if self.momenta:
            self.momenta = accumulate_(self.momenta, self.beta, direction)
        else:
            self.momenta = [d.clone() for d in direction]
        return self.momenta


def descent(
    hp: Any,
    linear: Tensors | None,
    proximal: tuple[Any, Tensors] | None,
    momentum: Momentum,
    update: Update | None = None,
) -> DescentStep:
    """Step of `minimize` with its terms.

    proximal: (weight, centre). update: how a direction changes the parameters, always in place; None: they move along
    it, by the rate.
    """
    optimizer, has_momentum = getattr(hp, "optimizer", "sgd"), enabled(hp.momentum)
    decay = [lambda direction, w: add_(direction, w, hp.weight_decay)] if enabled(hp.weight_decay) else []
    # Without clipping and momentum, the proximal term may be applied directly to the parameters.
    is_direct = hp.clip_norm is None and not has_momentum and optimizer == "sgd"
    weight, centre = proximal or (0.0, None)
    chain: list[Transformation] = [
        *([] if linear is None else [lambda direction, _: add_(direction, linear)]),
        *([] if centre is None or is_direct else [lambda direction, w: pull_(direction, w, centre, weight)]),
        *([] if hp.clip_norm is None else [clip(hp.clip_norm)]),
        *([] if optimizer == "adamw" else decay),
        *([momentum] if has_momentum else []),
        *([Adam()] if optimizer in ("adam", "adamw") else []),
        *(decay if optimizer == "adamw" else []),
    ]

    def step(w: Tensors, gradient: Iterable[Tensor], rate: Any, in_place: bool = True) -> Tensors:
        direction = apart(gradient) if chain or update else list(gradient)
        for transformation in chain:
            direction = transformation(direction, w)
        if update:
            return update(w, direction, rate)
        if centre is not None and is_direct:
            w, in_place = lerp_(w if in_place else [p.clone() for p in w], centre, rate * weight), True
        return add_(w, direction, -rate) if in_place else plus(w, direction, -rate)

    return step


def clip(clip_norm: Any) -> Transformation:
    def clipped(direction: Tensors, w: Tensors) -> Tensors:
        factor = clip_factor(norms(direction), clip_norm)
        # On the CPU, reading the factor is free and saves a pass over memory.
        return direction if is_plain() and factor.device.type == "cpu" and factor >= 1 else mul_(direction, factor)

    return clipped


def clip_factor(norms: Sequence[Tensor], clip_norm: Any) -> Tensor:
    """Factor that scales a direction down to `clip_norm`, 0-d and at most 1. norms: norms of its parts."""
    return (clip_norm / (torch.stack(list(norms)).norm() + 1e-6)).clamp(max=1.0)
