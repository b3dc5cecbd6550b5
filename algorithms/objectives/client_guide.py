"""DiSK on the clients: each client has a guide, which selects the samples whose teacher predictions the student learns.

    disk        L_dist of DiSK (thesis, Eq. 6.4)
    simkd_disk  mean (1 - g) ||Psi(f) - f_t||^2, SimKD with a guide (Eq. A.1)

The thesis (7.2) names both as next steps without details. Here lines 2 to 4 of Algorithm 7 form one round in which the
client participates, called a lesson: the guide learns with the received model fixed, the model learns with the guide
fixed, and the multiplier is updated. The guide and the number of lessons are client state and are never transmitted.
There is no warm start.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import ONCE, Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Params, Task, drawn, mean_over
from hedgerow.algorithms.nn.feature_maps import feature_distance
from hedgerow.algorithms.nn.features import Features, extract_features, shapes, teacher_features
from hedgerow.algorithms.objectives.auxiliary import Temperature
from hedgerow.algorithms.objectives.distillation_loss import soft_labels
from hedgerow.algorithms.objectives.distilled import FromTeacher
from hedgerow.algorithms.objectives.feature_reuse import ReusedTeacher
from hedgerow.algorithms.objectives.guide import (
    Guidance,
    distance,
    excuses,
    fitted_temperature,
    guide_network,
    multiplier,
    overspent,
)
from hedgerow.algorithms.optim.local_sgd import minimize


class Lesson(NamedTuple):
    """Result of training a client's guide in a round. student_tau: temperature of the student."""

    guide: Params
    student_tau: Any
    metrics: dict[str, Tensor]


class GuidedObjective(FromTeacher):
    """An objective with one guide per client, which is trained before the model in every round in which the client
    participates.

    If the model uses static batch normalisation, so does the guide, as in the thesis. Otherwise the guide normalises
    each sample separately, since mini-batches of clients may be padded.
    """

    calls_logits = False

    is_algorithm = True

    temperature: Temperature = 3.5
    guide: Guidance = Field(Guidance(), description="each client's guide")

    rules = (
        Rule(
            lambda objective: objective.limit is not None,
            "`limit`: {kind} has its own budget, `guide.delta`; give `alpha`",
        ),
    )

    def distance(
        self, own: Any, seen: Features, teacher: Features, g: Tensor, batch: Batch, student_tau: Any
    ) -> Tensor:
        """Distance of the student from the teacher with excuses g; 0-d."""
        return guided_distance(own, seen.logits, teacher, g, batch, student_tau)

    def task(self, task: Task) -> Task:
        outputs = shapes(task.teacher_task)
        norm = StaticBatchNorm2d if task.is_static else partial(nn.GroupNorm, 1)
        with torch.device("meta"):
            network = guide_network(
                outputs.features.shape[-1] + outputs.logits.shape[-1], self.guide.guide_hidden, norm
            )
        return replace(super().task(task), guide=network)

    def batches(self, specs: Mapping[str, BatchSpec]) -> dict[str, BatchSpec]:
        streams = super().batches(specs)
        fit = {"fit": ONCE} if self.guide.student_tau == "fit" else {}
        return {**streams, "guide": streams["train"], **fit}

    def at(self, round: int, initial: Any, now: Any) -> Self:
        """Scales the guide's learning rate with the schedule of the model's learning rate."""
        if self.guide.guide_lr is None:
            return self
        rate = self.guide.guide_lr * now.lr / initial.lr
        return self.model_copy(update={"guide": self.guide.model_copy(update={"guide_lr": rate})})

    def init_client(self, task: Task) -> Tree:
        """Returns the same guide for all clients, and 0 lessons."""
        return {"guide": drawn(guide_of(task), torch.Generator().manual_seed(0)), "lessons": torch.zeros(())}

    def prepare(self, task: Task, hp: Any, down: Tree, state: Tree, data: ClientData) -> Lesson:
        """Trains the guide with the received model fixed (line 2)."""
        own, guide, w, network = hp.objective, hp.objective.guide, down["w"], guide_of(task)
        student_tau = _student_temperature(task, own, w, data)
        weight = multiplier(state["lessons"] + 1, guide.lambda_min, guide.lambda_max, guide.lambda_period)

        def loss(params: Params, batch: Batch) -> Tensor:
            logits, teacher = task.logits(w, batch.x), teacher_features(task, batch.x)
            g = excuses(network, params, teacher)
            spent = overspent(logits, g, batch, guide.delta, guide.budget_over, guide.budget_of)
            return (1 - own.alpha) * guided_distance(own, logits, teacher, g, batch, student_tau) + weight * spent

        sgd = hp.algorithm
        rate = sgd.lr if guide.guide_lr is None else guide.guide_lr
        steps = SimpleNamespace(lr=rate, momentum=sgd.momentum, weight_decay=sgd.weight_decay, clip_norm=sgd.clip_norm)
        new_guide, value = minimize(loss, state["guide"], data, steps, batches=data.batches("guide"))
        first = next(data.batches("guide"))
        excuse = mean_over(excuses(network, new_guide, teacher_features(task, first.x)), first)
        return Lesson(new_guide, student_tau, {"guide_loss": value, "excused": excuse})

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Lesson) -> tuple[Tensor, Tensor]:
        student, teacher = extract_features(task, w, batch.x), teacher_features(task, batch.x)
        g = excuses(guide_of(task), prepared.guide, teacher)
        return student.logits, self.distance(own, student, teacher, g, batch, prepared.student_tau)

    def end(
        self, task: Task, hp: Any, w: Params, state: Tree, context: Lesson, data: ClientData
    ) -> tuple[Tree, dict[str, Tensor]]:
        return {"guide": context.guide, "lessons": state["lessons"] + 1}, context.metrics


class GuidedDistillation(GuidedObjective):
    """Distillation with a guide: teacher predictions count less for samples that the guide excuses."""


class SimKDGuidance(Guidance):
    """Settings of a guide for SimKD. A client has few lessons, and its guide does not move while all samples are
    excused. The weight of the budget is therefore high from the first lesson on.
    """

    lambda_min: float = Field(50.0, ge=0, description="weight of the budget in the first round")


class GuidedFeatureReuse(GuidedObjective, ReusedTeacher):
    """SimKD with a guide, which is trained as in `disk`, on the logits of the teacher's last layer."""

    guide: SimKDGuidance = Field(SimKDGuidance(), description="each client's guide")

    def distance(
        self, own: Any, seen: Features, teacher: Features, g: Tensor, batch: Batch, student_tau: Any
    ) -> Tensor:
        return mean_over((1 - g) * feature_distance(seen, teacher), batch)


def guide_of(task: Task) -> nn.Module:
    """Returns the network of the guide."""
    assert task.guide is not None
    return task.guide


def guided_distance(own: Any, logits: Tensor, teacher: Features, g: Tensor, batch: Batch, student_tau: Any) -> Tensor:
    """L_dist; 0-d."""
    target = soft_labels(teacher.logits, own.temperature)
    return distance(logits, target, g, batch, own.temperature, student_tau, own.guide.top_k)


def _student_temperature(task: Task, own: Any, w: Params, data: ClientData) -> Any:
    """Returns tau_s: the configured value, or the value fitted on all samples of the client."""
    setting = own.temperature if own.guide.student_tau == "teacher" else own.guide.student_tau
    if setting != "fit":
        return setting
    targets, logits = [], []
    with torch.no_grad():
        for batch in data.batches("fit"):
            # Logits of 0 do not change the temperature.
            real = 1.0 if batch.mask is None else batch.mask[:, None]
            targets.append(soft_labels(teacher_features(task, batch.x).logits, own.temperature))
            logits.append(real * task.logits(w, batch.x))
        return fitted_temperature(torch.cat(targets), torch.cat(logits))
