"""Distillation: models learn from the predictions of other models on unlabelled samples.

A target is a probability for each class; it replaces the labels in a mini-batch.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.pytree import Tree, flatten, unflatten, unstack
from hedgerow.algorithms.core.task import Params, Task, mean_over
from hedgerow.algorithms.optim.local_sgd import ONE_MOMENTUM, minimize


class Distiller(Settings):
    """Settings of a model that learns from targets."""

    lr: float = Field(1e-3, gt=0, description="learning rate, constant over rounds")
    optimizer: Literal["sgd", "adam"] = Field("adam", description="optimiser; its state is reset in every round")
    momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum of sgd")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty")
    clip_norm: float | None = Field(None, gt=0, description="maximum norm of the direction; null: no clipping")
    batch_size: int = Field(64, ge=1, description="public samples per step")

    rules = (ONE_MOMENTUM,)


class Distillation(Distiller):
    """Settings of distillation on the server, over public samples."""

    steps: int = Field(100, ge=0, description="steps per round")

    @property
    def batches(self) -> dict[str, BatchSpec]:
        """The mini-batches of a round."""
        return {"public": BatchSpec(size=self.batch_size, steps=self.steps, split="public")}


# ---- targets of teachers ---------------------------------------------------------------------------------------------


def ensemble(task: Task, teachers: Tree, x: Tensor) -> Tensor:
    """Logits (teachers, samples, classes) of several models. teachers: name -> a stack of models of one shape."""
    return torch.stack([task.logits(w, x) for alike in teachers.values() for w in unstack(alike)])


def soft_labels(logits: Tensor, temperature: Any = 1.0) -> Tensor:
    """Class probabilities; a higher temperature makes them more uniform."""
    return (logits / temperature).softmax(-1)


def sharpened(probabilities: Tensor, temperature: Any) -> Tensor:
    """Entropy reduction (Itahara et al., 2021, Eq. 8): a softmax of averaged probabilities, not of logits.

    Low temperatures sharpen probabilities that are not sharp yet, but slightly lower a probability that is close to 1.
    """
    return (probabilities / temperature).softmax(-1)


def confidence(logits: Tensor) -> Tensor:
    """Confidence of models in samples: variance of their logits over the classes, (teachers, samples)."""
    return logits.var(-1)


def consensus(logits: Tensor) -> Tensor:
    """Mean logits (samples, classes) of teachers, weighted by their confidence (Cho et al., 2022)."""
    return _weighted(logits, confidence(logits))


def dissent(logits: Tensor, labels: Tensor) -> Tensor:
    """Probabilities (samples, classes) of the teachers that predict other labels; 0 where all teachers agree."""
    others = (logits.argmax(-1) != labels).to(logits.dtype)
    return soft_labels(_weighted(logits, others * confidence(logits))) * others.amax(0)[:, None]


def _weighted(logits: Tensor, weights: Tensor) -> Tensor:
    """Weighted mean over the teachers, sample by sample; 0 where all weights are 0."""
    total = weights.sum(0)
    shares = weights / torch.where(total > 0, total, torch.ones_like(total))
    return (shares[..., None] * logits).sum(0)


# ---- losses of students ----------------------------------------------------------------------------------------------


def divergence(target: Tensor, logits: Tensor, batch: Batch, temperature: Any = 1.0) -> Tensor:
    """T^2 KL(target || softmax(logits / T)), mean over a batch's real samples. Its gradient by the logits does not
    vanish as T grows (Hinton, Vinyals, Dean, 2015). A target of zeros counts as 0.
    """
    log_probabilities = (logits / temperature).log_softmax(-1)
    return temperature**2 * mean_over((torch.xlogy(target, target) - target * log_probabilities).sum(-1), batch)


def between(target: Tensor, logits: Tensor, batch: Batch, temperature: Any = 1.0) -> Tensor:
    """Same as `divergence` for the target softmax(target / T) of logits; differentiable by both arguments."""
    target_log, student_log = ((one / temperature).log_softmax(-1) for one in (target, logits))
    return temperature**2 * mean_over((target_log.exp() * (target_log - student_log)).sum(-1), batch)


Loss = Callable[[Tensor, Batch], Tensor]
"""(logits of a student, mini-batch whose `y` are targets) -> a 0-d tensor."""


def taught(batches: Iterable[Batch], teach: Callable[[Tensor], Tensor]) -> Iterator[Batch]:
    """Yields the same mini-batches with targets, each computed when it is requested."""
    for batch in batches:
        with torch.no_grad():
            target = teach(batch.x)
        yield replace(batch, y=target)


def distil(
    task: Task, students: Tree, data: ClientData, hp: Any, batches: Iterable[Batch], loss: Loss
) -> tuple[Tree, Tensor]:
    """Trains students on the same mini-batches with targets; returns them, and the mean sum of their losses.

    students: name -> model; they may differ in shape.
    hp: a Distiller.
    """

    def together(flat: Params, batch: Batch) -> Tensor:
        return torch.stack([loss(task.logits(w, batch.x), batch) for w in unflatten(flat).values()]).sum()

    # Without joint clipping, students are independent: steps depend on a parameter's own gradient only.
    models, total = minimize(together, flatten(students), data, hp, batches=batches)
    return unflatten(models), total
