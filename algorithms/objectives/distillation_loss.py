"""Distillation: models learn from what others say of samples without labels.

A target is a probability for each class; it stands in a mini-batch in the place of the labels.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.pytree import Tree, flatten, unflatten, unstack
from hedgerow.algorithms.core.task import Params, Task, mean_over
from hedgerow.algorithms.optim.local_sgd import minimize


class Distiller(Settings):
    """How a model learns from targets."""

    lr: float = Field(1e-3, gt=0, description="learning rate, the same in all rounds")
    optimizer: Literal["sgd", "adam"] = Field("adam", description="begun anew in every round")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum of sgd")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of the direction; null: no clipping")
    batch_size: int = Field(64, ge=1, description="public samples per step")

    @model_validator(mode="after")
    def _one_momentum(self) -> Self:
        if self.optimizer == "adam" and self.momentum:
            raise ValueError("`momentum` is for sgd, and adam has its own; set it to 0")
        return self


class Distillation(Distiller):
    """How the server does, in one go through public samples."""

    steps: int = Field(100, ge=0, description="steps in a round")

    @property
    def batches(self) -> dict[str, BatchSpec]:
        """The mini-batches of a round."""
        return {"public": BatchSpec(size=self.batch_size, steps=self.steps, split="public")}


# ---- what teachers say -----------------------------------------------------------------------------------------------


def ensemble(task: Task, teachers: Tree, x: Tensor) -> Tensor:
    """The logits (teachers, samples, classes) of some models. teachers: name -> a stack of models of one shape."""
    return torch.stack([task.logits(w, x) for alike in teachers.values() for w in unstack(alike)])


def soft_labels(logits: Tensor, temperature: Any = 1.0) -> Tensor:
    """Probabilities; the higher the temperature, the more equal."""
    return (logits / temperature).softmax(-1)


def sharpened(probabilities: Tensor, temperature: Any) -> Tensor:
    """Entropy reduction (Itahara et al., 2021, Eq. 8): a softmax of averaged probabilities, not of logits.

    Low temperatures sharpen whatever is not sharp yet; a probability that is next to 1 they lower again a little.
    """
    return (probabilities / temperature).softmax(-1)


def confidence(logits: Tensor) -> Tensor:
    """How sure models are of samples: the variance of their logits over the classes, (teachers, samples)."""
    return logits.var(-1)


def consensus(logits: Tensor) -> Tensor:
    """The logits (samples, classes) that teachers agree on, each weighing as much as it is sure (Cho et al., 2022)."""
    return _weighted(logits, confidence(logits))


def dissent(logits: Tensor, labels: Tensor) -> Tensor:
    """What those say who would give samples other labels, as probabilities (samples, classes); where all agree, 0."""
    others = (logits.argmax(-1) != labels).to(logits.dtype)
    return soft_labels(_weighted(logits, others * confidence(logits))) * others.amax(0)[:, None]


def _weighted(logits: Tensor, weights: Tensor) -> Tensor:
    """The mean over the teachers, sample by sample. Where all weights are 0, so is the mean."""
    total = weights.sum(0)
    shares = weights / torch.where(total > 0, total, torch.ones_like(total))
    return (shares[..., None] * logits).sum(0)


# ---- what students learn ---------------------------------------------------------------------------------------------


def divergence(target: Tensor, logits: Tensor, batch: Batch, temperature: Any = 1.0) -> Tensor:
    """T^2 KL(target || softmax(logits / T)), the mean over a batch's real samples; its slope by the logits does not
    fade as T grows (Hinton, Vinyals, Dean, 2015). A target of zeros counts as 0.
    """
    said = (logits / temperature).log_softmax(-1)
    return temperature**2 * mean_over((torch.xlogy(target, target) - target * said).sum(-1), batch)


def between(target: Tensor, logits: Tensor, batch: Batch, temperature: Any = 1.0) -> Tensor:
    """The same of a target that is softmax(target / T) of logits too; it can be differentiated by both."""
    known, said = ((one / temperature).log_softmax(-1) for one in (target, logits))
    return temperature**2 * mean_over((known.exp() * (known - said)).sum(-1), batch)


Loss = Callable[[Tensor, Batch], Tensor]
"""Of a student's logits on a mini-batch whose `y` are targets; 0-d."""


def taught(batches: Iterable[Batch], teach: Callable[[Tensor], Tensor]) -> Iterator[Batch]:
    """The same mini-batches with targets, made as each is looked at."""
    for batch in batches:
        with torch.no_grad():
            target = teach(batch.x)
        yield replace(batch, y=target)


def distil(
    task: Task, students: Tree, data: ClientData, hp: Any, batches: Iterable[Batch], loss: Loss
) -> tuple[Tree, Tensor]:
    """Students that have learnt from the same mini-batches with targets, and the mean sum of their losses.

    students: name -> model; they may differ in shape. hp: a Distiller.
    """

    def together(flat: Params, batch: Batch) -> Tensor:
        return torch.stack([loss(task.logits(w, batch.x), batch) for w in unflatten(flat).values()]).sum()

    # Unless they are clipped together, no student disturbs another: steps depend on a parameter's own slope alone.
    learnt, total = minimize(together, flatten(students), data, hp, batches=batches)
    return unflatten(learnt), total
