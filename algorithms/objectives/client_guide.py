"""DiSK as a side loss (thesis, 7.2, which names it as a next step): each client has a guide of its own.

A lesson is a round in which the client takes part. Lines 2 to 4 of Algorithm 7 are one: the guide learns against the
model that was received, the client's model learns with its excuses, the multiplier moves on. The guide and the number
of lessons are the client's state and never transmitted. Nothing is said of it in the source; there is no warm start
here. Beside SimKD the guide learns in the same way, under a multiplier that stays, and excuses from its distance of
maps.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Params, Task, drawn, mean_over
from hedgerow.algorithms.nn.feature_maps import apart
from hedgerow.algorithms.nn.features import Inside, asked, shapes
from hedgerow.algorithms.objectives.distillation_loss import soft_labels
from hedgerow.algorithms.objectives.guide import (
    distance,
    excuses,
    fitted_temperature,
    guide_network,
    multiplier,
    overspent,
)
from hedgerow.algorithms.optim.local_sgd import minimise

Far = Callable[[Inside, Batch], Tensor]
"""(what a model makes of a mini-batch, mini-batch) -> how far it is from the teacher, with excuses; 0-d."""


class ClientGuide:
    """A client's guide. It normalises statically, as the source's does, where the model does; else each sample by
    itself, since mini-batches of clients may be padded.
    """

    def __init__(self, task: Task, side: Any):
        """side: a Side."""
        self.reuses = side.reuses
        seen = shapes(task.master)
        norm = StaticBatchNorm2d if task.is_static else partial(nn.GroupNorm, 1)
        with torch.device("meta"):
            self.network = guide_network(seen.features.shape[-1] + seen.logits.shape[-1], side.guide.guide_hidden, norm)

    def init(self) -> Tree:
        """A client's state before its first lesson: the same guide for everybody."""
        return {"guide": drawn(self.network, torch.Generator().manual_seed(0)), "lessons": torch.zeros(())}

    def lesson(
        self, task: Task, hp: Any, w: Params, state: Tree, data: ClientData
    ) -> tuple[Far, Tree, dict[str, Tensor]]:
        """The guide's part of a lesson: the distance with its excuses, the client's state, and what to say of it."""
        side, own = hp.side, hp.side.guide
        softness = _softness(task, side, w, data)
        number = state["lessons"] + 1
        weight = multiplier(number, own.lambda_min, own.lambda_max, own.lambda_period)

        def loss(guide: Params, batch: Batch) -> Tensor:
            logits, teacher = task.logits(w, batch.x), asked(task, batch.x)
            g = excuses(self.network, guide, teacher)
            spent = overspent(logits, g, batch, own.delta, own.budget_over, own.budget_of)
            return (1 - side.alpha) * _distance(side, logits, teacher, g, batch, softness) + weight * spent

        rate = hp.lr if own.guide_lr is None else own.guide_lr
        steps = SimpleNamespace(lr=rate, momentum=hp.momentum, weight_decay=hp.weight_decay, clip_norm=hp.clip_norm)
        guide, value = minimise(loss, state["guide"], data, steps, batches=data.batches("guide"))
        first = next(data.batches("guide"))
        excused = mean_over(excuses(self.network, guide, asked(task, first.x)), first)
        far = self.far(task, side, guide, softness)
        return far, {"guide": guide, "lessons": number}, {"guide_loss": value, "excused": excused}

    def far(self, task: Task, side: Any, guide: Params, softness: Any) -> Far:
        """With the excuses of a guide."""

        def excused(seen: Inside, batch: Batch) -> Tensor:
            teacher = asked(task, batch.x)
            g = excuses(self.network, guide, teacher)
            if self.reuses:
                return mean_over((1 - g) * apart(seen, teacher), batch)
            return _distance(side, seen.logits, teacher, g, batch, softness)

        return excused


def _distance(side: Any, logits: Tensor, teacher: Inside, g: Tensor, batch: Batch, softness: Any) -> Tensor:
    """L_dist."""
    target = soft_labels(teacher.logits, side.temperature)
    return distance(logits, target, g, batch, side.temperature, softness, side.guide.top_k)


def _softness(task: Task, side: Any, w: Params, data: ClientData) -> Any:
    """tau_s."""
    given = side.temperature if side.guide.student_tau == "teacher" else side.guide.student_tau
    if given != "fit":
        return given
    said, answers = [], []
    with torch.no_grad():
        for batch in data.batches("fit"):
            # Without logits a sample draws the temperature nowhere.
            real = 1.0 if batch.mask is None else batch.mask[:, None]
            said.append(soft_labels(asked(task, batch.x).logits, side.temperature))
            answers.append(real * task.logits(w, batch.x))
        return fitted_temperature(torch.cat(said), torch.cat(answers))
