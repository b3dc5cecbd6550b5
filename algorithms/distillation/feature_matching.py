"""Base class of methods that match feature maps: their other losses, and modules trained with the student."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Task
from hedgerow.algorithms.distillation.student import Student
from hedgerow.algorithms.nn.feature_maps import feature_map_incompatibility
from hedgerow.algorithms.nn.features import Features, shapes
from hedgerow.algorithms.objectives.distillation_loss import divergence, soft_labels


class Matching(Student):
    """Student that also matches the teacher's feature maps: L = L_CE + L_KL + weight L_maps.

    Modules that are trained together with the student match the maps.
    """

    needs = Student.needs | {"feature_maps"}

    class Hyper(Student.Hyper):
        tau: float = Field(4.0, gt=0, description="temperature that softens the outputs of student and teacher")

    learns = ("w", "bridge")

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        if task.teacher is not None and self.incompatibility() is None:
            with torch.device("meta"):
                self.bridge = self.bridge_between(shapes(task).maps, shapes(self.teacher_task).maps)

    def incompatibility(self) -> str | None:
        return super().incompatibility() or feature_map_incompatibility(self.hyper.name, self.task, self.teacher_task)

    def bridge_between(self, student: list[Tensor], teacher: list[Tensor]) -> nn.Module:
        """Modules that are trained together with the student, for maps of these shapes."""
        raise NotImplementedError

    def extra_modules(self, cohort: Any) -> Tree:
        return {"bridge": self.drawn(self.bridge, cohort, "bridge")}

    def outputs(self, hp: Any, student: Features, teacher: Features, batch: Batch) -> Tensor:
        """L_CE + L_KL."""
        target = soft_labels(teacher.logits, hp.tau)
        distillation = divergence(target, student.logits, batch, hp.tau)
        return self.task.criterion(student.logits, batch) + distillation
