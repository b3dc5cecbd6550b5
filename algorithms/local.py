"""Local minimisation: the SGD that nearly every client step calls, in two forms with the same numbers."""

from collections.abc import Callable
from typing import Any, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hedgerow.algorithms.base import Batch, Batches, ClientData, HyperParameters, channels_last, enabled
from hedgerow.algorithms.gradient import gradient_and_value
from hedgerow.algorithms.task import Params
from hedgerow.algorithms.trees import add, tree_map

Loss = Callable[[Params, Batch], Tensor]
Correction = Callable[[Params], Params]


class LocalSGD(HyperParameters):
    """Hyperparameters of the local solver."""

    lr: float = Field(0.1, gt=0, description="local learning rate in round 1")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the local learning rate from round to round")
    epochs: int | None = Field(1, ge=1, description="passes over the local data; null where `steps` is given")
    steps: int | None = Field(None, ge=1, description="local steps, in place of `epochs`")
    batch_size: int | None = Field(50, ge=1, description="samples per step; null: the whole local data")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum, reset at the start of a round")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty, added to the direction after clipping")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of the direction; null: no clipping")

    @model_validator(mode="before")
    @classmethod
    def _steps_replace_epochs(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("steps") is not None and "epochs" not in values:
            values = {**values, "epochs": None}
        return values

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either `epochs` or `steps`, and set the other to null")
        return self

    def at(self, round: int) -> Self:
        return self.model_copy(update={"lr": self.lr * self.lr_decay ** (round - 1)})

    @property
    def batches(self) -> dict[str, Batches]:
        """The mini-batches of one round of local training."""
        return {"train": Batches(size=self.batch_size, epochs=self.epochs or 1, steps=self.steps)}


def local_sgd(
    loss: Loss, start: Params, data: ClientData, hp: LocalSGD, correction: Correction | None = None
) -> tuple[Params, Tensor]:
    """Minimise `loss` from `start` over the client's "train" batches.

    The direction is clip(grad loss(w) + correction(w)) + weight_decay * w, as in the experiments of the FedDyn paper.
    Returns the final parameters and the mean loss over the steps (0-d).
    """
    return (_batched if data.batched else _in_place)(loss, start, data, hp, correction)


def _in_place(
    loss: Loss, start: Params, data: ClientData, hp: LocalSGD, correction: Correction | None
) -> tuple[Params, Tensor]:
    w = {name: channels_last(p.detach()).clone().requires_grad_() for name, p in start.items()}
    params = list(w.values())
    momenta: list[Tensor] | None = None
    losses = []
    for batch in data.batches("train"):
        value = loss(w, batch)
        direction = list(torch.autograd.grad(value, params))
        losses.append(value.detach())
        with torch.no_grad():
            if correction is not None:
                pull = correction(w)
                torch._foreach_add_(direction, [pull[name] for name in w])
            if hp.clip_norm is not None:
                torch._foreach_mul_(direction, _clip_factor(direction, hp.clip_norm))
            if enabled(hp.weight_decay):
                torch._foreach_add_(direction, params, alpha=hp.weight_decay)
            if enabled(hp.momentum):
                if momenta is None:
                    momenta = [d.clone() for d in direction]
                else:
                    torch._foreach_mul_(momenta, hp.momentum)
                    torch._foreach_add_(momenta, direction)
                direction = momenta
            torch._foreach_add_(params, direction, alpha=-hp.lr)
    mean_loss = torch.stack(losses).mean() if losses else torch.tensor(float("nan"))
    return {name: p.detach().contiguous() for name, p in w.items()}, mean_loss


def _batched(
    loss: Loss, start: Params, data: ClientData, hp: LocalSGD, correction: Correction | None
) -> tuple[Params, Tensor]:
    gradient = gradient_and_value(loss)
    w = start
    momenta: Params | None = None
    total = torch.zeros((), device=data.x.device)
    steps = torch.zeros((), device=data.x.device)
    for batch in data.batches("train"):
        direction, value = gradient(w, batch)
        if correction is not None:
            direction = tree_map(torch.add, direction, correction(w))
        if hp.clip_norm is not None:
            factor = _clip_factor(list(direction.values()), hp.clip_norm)
            direction = tree_map(lambda d, factor=factor: d * factor, direction)
        if enabled(hp.weight_decay):
            direction = tree_map(lambda d, p: d + hp.weight_decay * p, direction, w)
        if enabled(hp.momentum):
            momenta = direction if momenta is None else add(direction, momenta, hp.momentum)
            direction = momenta
        # Padded steps come last and have active = 0: they leave the parameters as they are, bit for bit.
        step = -hp.lr * batch.active
        w = tree_map(lambda p, d, step=step: torch.addcmul(p, d, step), w, direction)
        total = total + value * batch.active
        steps = steps + batch.active
    return w, total / steps


def _clip_factor(direction: list[Tensor], clip_norm: Any) -> Tensor:
    norm = torch.stack([d.square().sum() for d in direction]).sum().sqrt()
    return (clip_norm / (norm + 1e-6)).clamp(max=1.0)
