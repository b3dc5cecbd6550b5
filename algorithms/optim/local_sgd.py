"""Local minimisation, used by nearly all client steps: SGD, Adam or AdamW, looped or batched with equal results, an
optimiser of torch.optim in a loop, or Newton.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData, channels_last, needs_default_format
from hedgerow.algorithms.core.hyperparameters import HyperParameters, Rule, enabled
from hedgerow.algorithms.core.pytree import add
from hedgerow.algorithms.core.task import FixedParameters, Params
from hedgerow.algorithms.core.torch_private import gradients
from hedgerow.algorithms.optim.descent import Momentum, descent
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.newton import newton
from hedgerow.algorithms.optim.torch_optimizer import Optimizer, TorchOptimizer

Loss = Callable[[Params, Batch], Tensor]


LOCAL = ("lr", "lr_decay", "momentum", "weight_decay", "clip_norm")
"""Floats of `LocalSGD`, which only client steps use."""


class LearningRate(HyperParameters):
    """A learning rate with a schedule over rounds."""

    lr: float = Field(0.1, gt=0, description="learning rate in round 1")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate from round to round")
    lr_decay_every: int = Field(1, ge=1, description="rounds between two decays of the learning rate")
    lr_decay_after: list[int] | None = Field(
        None, description="rounds after which the learning rate decays; null: every `lr_decay_every` rounds"
    )

    lr_cosine: int | None = Field(
        None,
        ge=1,
        description="last round of a cosine schedule, with a learning rate near 0 from then on; null: no schedule",
    )

    def at(self, round: int) -> Self:
        decays = (round - 1) // self.lr_decay_every
        if self.lr_decay_after is not None:
            decays = sum(round > last for last in self.lr_decay_after)
        lr = self.lr * self.lr_decay**decays
        if self.lr_cosine is not None:
            lr *= cosine(round, self.lr_cosine)
        return self.model_copy(update={"lr": lr})


def cosine(number: int, last: int) -> float:
    """Factor that falls along half a cosine from 1 in round 1 to nearly 0 in round `last`, and then stays constant."""
    return (1 + math.cos(math.pi * (min(number, last) - 1) / last)) / 2


class LocalSGD(LearningRate):
    """Hyperparameters of the local solver."""

    alternatives = (("epochs", "steps"),)

    assumes_sgd: ClassVar[str] = "its local steps are steps of SGD"
    """Why there is no other local optimiser, if the class does not derive from `LocalOptimizer`."""

    epochs: int | None = Field(1, ge=1, description="passes over the local data; null if `steps` is given")
    steps: int | None = Field(None, ge=1, description="local steps, instead of `epochs`")
    batch_size: int | None = Field(50, ge=1, description="samples per step; null: all local data")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum, reset at the start of a round")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty, added to the direction after clipping")
    clip_norm: float | None = Field(None, gt=0, description="maximum norm of the direction; null: no clipping")

    @model_validator(mode="before")
    @classmethod
    def _no_other_optimizer(cls, values: Any) -> Any:
        if isinstance(values, dict) and "optimizer" in values and "optimizer" not in cls.model_fields:
            raise ValueError(f"`optimizer` cannot be chosen, because {cls.assumes_sgd}; remove it")
        return values

    @property
    def batches(self) -> dict[str, BatchSpec]:
        """The mini-batches of one round of local training."""
        return {"train": BatchSpec(size=self.batch_size, epochs=self.epochs or 1, steps=self.steps, views=1)}


ONE_MOMENTUM = Rule(
    lambda hyper: hyper.optimizer != "sgd" and hyper.momentum and getattr(hyper.optimizer, "name", hyper.optimizer),
    "`momentum` is for sgd, and {found} has its own; set it to 0",
)
"""Rule of settings with `optimizer` and `momentum`, which refuses a momentum that the optimiser does not read."""


class LocalOptimizer(LocalSGD):
    """Hyperparameters of the local solver, with a choice of the optimiser."""

    optimizer: Optimizer = Field(
        "sgd",
        description="local optimiser, reset at the start of a round; adam, adamw: beta_1 .9, beta_2 .999, with adamw "
        "`weight_decay` does not enter the moments; or an optimiser of PyTorch, which trains one client after the "
        "other: `{name: torch.optim.RMSprop, args: {alpha: 0.9}}`",
    )

    rules = (ONE_MOMENTUM,)

    @property
    def no_vmap(self) -> str | None:
        """Reason why clients cannot be trained at once; None if they can."""
        return self.optimizer.no_vmap if isinstance(self.optimizer, TorchOptimizer) else None


class LocalSolver(LocalOptimizer):
    """Hyperparameters of the local solver, with the option of an exact solution, as assumed in analyses."""

    solver: Literal["sgd", "newton"] = Field(
        "sgd",
        description="local solver; sgd: steps of `optimizer`; newton: the exact minimiser, for convex problems of a "
        "few hundred parameters; it ignores the settings of SGD",
    )

    rules = (
        Rule(
            lambda hyper: hyper.solver == "newton" and hyper.optimizer != "sgd",
            "`optimizer` has no effect with `solver: newton`; remove it",
        ),
    )

    @property
    def batches(self) -> dict[str, BatchSpec]:
        return super().batches if self.solver == "sgd" else {"train": BatchSpec(shuffle=False)}


class Proximal(NamedTuple):
    """Proximal term weight/2 ||w - centre||^2."""

    weight: Any
    centre: Params


def minimize(
    loss: Loss,
    start: Params,
    data: ClientData,
    hp: Any,
    linear: Params | None = None,
    proximal: Proximal | None = None,
    batches: Iterable[Batch] | None = None,
    memory: Params | None = None,
) -> tuple[Params, Tensor]:
    """Minimises `loss(w) + <linear, w> + proximal(w) + weight_decay/2 ||w||^2` from `start` over `batches`; by default
    over the stream "train".

    hp: LocalSGD, LocalOptimizer or LocalSolver. The direction of a step is clip(grad loss + linear + weight (w -
    centre)) + weight_decay w; Adam or an optimiser of torch.optim, if selected, transforms it further. AdamW adds
    weight_decay w after that.
    memory: momentum that persists between calls (loop form only). The first step starts from it, and the momentum of
    the last step is written back to it.
    Returns the final parameters and the mean loss over the steps (0-d).
    """
    linear, proximal = _one_of(linear, proximal)
    if getattr(hp, "solver", "sgd") == "newton":
        batch = next(data.batches("train"), None)
        if batch is None:
            return {name: p.clone() for name, p in start.items()}, _no_loss(start)
        return newton(lambda w: loss(w, batch), start, linear, proximal, hp.weight_decay, data.batched)
    batches = data.batches("train") if batches is None else batches
    if data.batched:
        return _functional(loss, start, batches, hp, linear, proximal)
    return _in_place(loss, start, batches, hp, linear, proximal, memory, data.plain)


def _one_of(linear: Params | None, proximal: Proximal | None) -> tuple[Params | None, Proximal | None]:
    """Merges the two terms into one by completing the square, which saves a pass over memory in every step."""
    if proximal is None or not enabled(proximal.weight):
        return linear, None
    if linear is None:
        return None, proximal
    if isinstance(proximal.weight, Tensor):
        # Some of the experts that run together may have weight 0.
        return linear, proximal
    return None, Proximal(proximal.weight, add(proximal.centre, linear, -1 / proximal.weight))


def _lists(
    tensors: Callable[[Params], list[Tensor]], linear: Params | None, proximal: Proximal | None
) -> tuple[list[Tensor] | None, tuple[Any, list[Tensor]] | None]:
    """The terms with lists in place of trees."""
    slope = None if linear is None else tensors(linear)
    return slope, None if proximal is None else (proximal.weight, tensors(proximal.centre))


def _in_place(
    loss: Loss,
    start: Params,
    batches: Iterable[Batch],
    hp: Any,
    linear: Params | None,
    proximal: Proximal | None,
    memory: Params | None,
    plain: bool,
) -> tuple[Params, Tensor]:
    """Steps of one client, whose parameters change in place."""
    # A sub-model may need the default format where the full model does not.
    plain = plain or needs_default_format(start.values())
    layout = torch.Tensor.contiguous if plain else channels_last
    optimizer = getattr(hp, "optimizer", "sgd")
    # They have the memory of `start` until the first step; an optimiser of torch.optim changes them in place.
    copy_or_view = torch.Tensor.clone if isinstance(optimizer, TorchOptimizer) else torch.Tensor.detach
    w = {name: copy_or_view(layout(p.detach())).requires_grad_() for name, p in start.items()}
    params = list(w.values())

    def tensors(tree: Params) -> list[Tensor]:
        return [layout(tree[name]) for name in w]

    momentum = Momentum(hp.momentum, [] if memory is None else [m.clone() for m in tensors(memory)])
    update = optimizer.stepper(params, hp.lr) if isinstance(optimizer, TorchOptimizer) else None
    step = descent(hp, *_lists(tensors, linear, proximal), momentum, update)
    losses: list[Tensor] = []
    with FixedParameters(w):
        for batch in batches:
            value = loss(w, replace(batch, x=batch.x.contiguous()) if plain else batch)
            # Parameters that the loss does not depend on get gradient 0.
            gradient = gradients(value, params)
            with torch.no_grad():
                new_params = step(params, gradient, hp.lr, in_place=bool(losses))
            if not losses:
                for p, new in zip(params, new_params, strict=True):
                    p.data = new.detach()
            losses.append(value.detach())
    if memory is not None and momentum.momenta:
        memory.update(zip(w, (m.contiguous() for m in momentum.momenta), strict=True))
    mean_loss = torch.stack(losses).mean() if losses else _no_loss(start)
    # Without a step, they are still those of `start`.
    copy_or_view = torch.Tensor.detach if losses else torch.Tensor.clone
    return {name: copy_or_view(p.detach()).contiguous() for name, p in w.items()}, mean_loss


def _functional(
    loss: Loss, start: Params, batches: Iterable[Batch], hp: Any, linear: Params | None, proximal: Proximal | None
) -> tuple[Params, Tensor]:
    """Steps of many clients under vmap, each of which returns new parameters."""
    gradient = gradient_and_value(loss)
    step = descent(hp, *_lists(lambda tree: [tree[name] for name in start], linear, proximal), Momentum(hp.momentum))
    w = [p.clone() for p in start.values()]
    losses: list[Tensor] = []
    active: list[Tensor] = []
    for batch in batches:
        slope, value = gradient(dict(zip(start, w, strict=True)), batch)
        # Padded steps come last and have active = 0: they leave the parameters unchanged, bit for bit.
        w = step(w, slope.values(), hp.lr * batch.active)
        losses.append(value * batch.active)
        active.append(torch.as_tensor(batch.active))
    mean_loss = torch.stack(losses).sum() / torch.stack(active).sum() if losses else _no_loss(start)
    return dict(zip(start, w, strict=True)), mean_loss


def _no_loss(w: Params) -> Tensor:
    """Loss of no step: NaN, on the device of the parameters."""
    return torch.full((), float("nan"), device=next((p.device for p in w.values()), None))


def plain_steps(hp: Any, steps: Tensor) -> Tensor:
    """Number of steps without momentum with the same displacement as `steps` with it, along a constant direction; 0-d.

    Step i of K moves the model by lr (1 - beta^i) / (1 - beta) times the direction. Together the K steps move it by lr
    (K - beta (1 - beta^K) / (1 - beta)) / (1 - beta) times the direction. If directions vary, the displacement divided
    by lr and this number is their weighted mean, with larger weights for early steps.

    hp: LocalSGD.
    """
    beta = hp.momentum
    if not enabled(beta):
        return steps
    # Double precision avoids cancellation: beta^K is near 1 if K is small.
    exact = steps.double()
    return ((exact - beta * (1 - beta**exact) / (1 - beta)) / (1 - beta)).float()
