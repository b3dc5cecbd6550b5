"""Distillation on the clients: the task's teacher predicts the samples of each mini-batch (thesis, 7.2).

    distillation  tau^2 KL(wbar^tau(x_a), w^tau(x_a)) (Eq. 7.3)
    both          its sum with the robustness term (Eq. 7.4)

wbar is the teacher, which is evaluated with its own statistics and without gradients.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.objectives.auxiliary import AuxiliaryLoss, Temperature
from hedgerow.algorithms.objectives.consistency import Robustness
from hedgerow.algorithms.objectives.distillation_loss import between


class FromTeacher(AuxiliaryLoss):
    """An auxiliary loss that needs the task's teacher, which is assumed to be available on every client."""

    is_algorithm: ClassVar[bool] = False
    """Whether a centralised algorithm with the same name exists."""

    def incompatibility(self, task: Task) -> str | None:
        if task.teacher is None or task.teacher_training is not None:
            return f"objective: {self.kind} needs a teacher; set `task.teacher` to a run"
        if task.teacher_task.is_static:
            return (
                f"task.teacher: it normalises by statistics of samples, and client mini-batches are too small for this "
                f"with {self.kind}; choose a teacher with GroupNorm, such as preact_resnet"
            )
        return super().incompatibility(task)

    def centralized_incompatibility(self, hyper: Any) -> str | None:
        if self.is_algorithm:
            return f"objective: for centralised training, {self.kind} is an algorithm; set `algorithm.name`"
        return super().centralized_incompatibility(hyper)


class PlainDistillation(FromTeacher):
    """Distillation: the model learns the predictions of the teacher."""

    temperature: Temperature = 3.5

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Any) -> tuple[Tensor, Tensor]:
        logits = task.logits(w, batch.x)
        return logits, divergence_from_teacher(own, task, logits, batch)


class DistillationRobustness(FromTeacher, Robustness):
    """The sum of `distillation` and `robustness`."""

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Any) -> tuple[Tensor, Tensor]:
        logits = task.logits(w, batch.x)
        from_teacher = divergence_from_teacher(own, task, logits, batch)
        return logits, from_teacher + self.disagreement(own, task, w, logits, batch)


def divergence_from_teacher(own: Any, task: Task, logits: Tensor, batch: Batch) -> Tensor:
    """tau^2 KL(teacher, student); 0-d. logits: of the student."""
    with torch.no_grad():
        target = task.teacher_logits(batch.x)
    return between(target, logits, batch, own.temperature)
