"""Mathematics of DiSK: a guide decides for each sample how far the student is excused from it (thesis, chapter 6).

g(x) = 1: the student need not learn the teacher's prediction of x; g(x) = 0: it must. The guide is used in training
only.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.measures import cross_entropies
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Params, mean_over
from hedgerow.algorithms.core.torch_private import call
from hedgerow.algorithms.nn.features import Features

TINY = 1e-12
"""Lower bound of the arguments of logarithms."""


class Guidance(Settings):
    """Settings of a guide, in addition to the weight of the labels and the teacher's temperature."""

    student_tau: float | Literal["teacher", "fit"] = Field(
        "teacher",
        description="temperature of the student; teacher: that of the teacher; fit: fitted in every round to minimise "
        "the divergence from the teacher on the training samples",
    )
    top_k: int = Field(20, ge=1, description="number of the teacher's most probable classes in which the guide helps")
    delta: float = Field(0.0, ge=0, description="budget: cross-entropy that the student may be excused from")
    lambda_min: float = Field(0.1, ge=0, description="weight of the budget in the first round")
    lambda_max: float = Field(
        50.0, ge=0, description="weight of the budget at the end of a period, approached along a cosine"
    )
    lambda_period: int = Field(50, ge=1, description="rounds after which the weight of the budget restarts")
    budget_over: Literal["wrong", "all"] = Field(
        "wrong", description="n of the budget: samples that the student misclassifies, or all"
    )
    budget_of: Literal["all", "wrong"] = Field("all", description="samples that the budget sums over")
    guide_hidden: list[Annotated[int, Field(ge=1)]] = Field([64, 128], description="units of the guide's hidden layers")
    guide_lr: float | None = Field(
        0.001,
        gt=0,
        description="learning rate of the guide in round 1; null: that of the student, with which the guide soon "
        "saturates at 0 or 1 for all samples and stops learning",
    )


def guide_network(
    inputs: int, hidden: list[int], norm: Callable[[int], nn.Module] = StaticBatchNorm2d
) -> nn.Sequential:
    """Returns linear layers with norm and ReLU between them; the source uses batch norm and 64-128-1 units."""
    layers: list[nn.Module] = []
    for width, following in pairwise([inputs, *hidden, 1]):
        layers += [nn.Linear(width, following), norm(following), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def excuses(guide: nn.Module, w: Params, teacher: Features) -> Tensor:
    """Returns g (samples,), computed from the teacher's features and logits of the samples."""
    inputs = torch.cat([teacher.features, teacher.logits], -1)
    return call(guide, w, inputs)[:, 0].sigmoid()


def distance(
    logits: Tensor, target: Tensor, g: Tensor, batch: Batch, temperature: Any, student_tau: Any, top: int
) -> Tensor:
    """L_dist (Eq. 6.4): -tau tau_s sum_y t_y log(s_y + 1{y in Top_K(t)} g), mean over the real samples.

    target (samples, classes): the teacher's probabilities at tau. s + g may exceed 1, so the value may be negative.
    """
    top_classes = target.topk(min(top, target.shape[-1]), -1).indices
    mask = torch.zeros_like(target).scatter(-1, top_classes, 1.0)
    probabilities = (logits / student_tau).softmax(-1) + mask * g[:, None]
    return -temperature * student_tau * mean_over((target * probabilities.clamp(min=TINY).log()).sum(-1), batch)


def overspent(logits: Tensor, g: Tensor, batch: Batch, budget: Any, over: str = "wrong", of: str = "all") -> Tensor:
    """L_bud (Eq. 6.3): [sum g(x) (-log s_y(x)) / n - budget]_+.

    over: samples that n counts, "wrong" (those that the student misclassifies; n is at least 1) or "all".
    of: samples in the sum, "wrong" or "all".
    """
    real = torch.ones_like(g) if batch.mask is None else batch.mask
    wrong = (logits.argmax(-1) != batch.y).to(g.dtype) * real
    losses = g * cross_entropies(logits, batch.y)
    number = (wrong if over == "wrong" else real).sum().clamp(min=1.0)
    return ((losses * (wrong if of == "wrong" else real)).sum() / number - budget).relu()


def multiplier(lesson: Any, lowest: Any, highest: Any, period: int) -> Any:
    """lambda (Algorithm 7, line 4) in a round, counted from 1: it rises along a cosine and restarts after each period.
    Returns a 0-d tensor if `lesson` is one.

    The source prints r mod period, which would end the last period at the lowest value; here the first round has the
    lowest.
    """
    phase = math.pi * ((lesson - 1) % period) / period
    return lowest + (highest - lowest) * (1 - (phase.cos() if isinstance(phase, Tensor) else math.cos(phase))) / 2


def fitted_temperature(target: Tensor, logits: Tensor) -> Tensor:
    """tau_s: the temperature at which a student is closest to its teacher, argmin KL(target || softmax(logits / tau)).

    The divergence is convex in 1/tau. Bisection finds the zero of its derivative, for temperatures between 1e-3 and
    1e3. 0-d.
    """
    low, high = (logits.new_tensor(math.log(end)) for end in (1e-3, 1e3))
    for _ in range(60):
        middle = (low + high) / 2
        slope = (((middle.exp() * logits).softmax(-1) - target) * logits).sum()
        low, high = torch.where(slope < 0, middle, low), torch.where(slope < 0, high, middle)
    return (-(low + high) / 2).exp()
