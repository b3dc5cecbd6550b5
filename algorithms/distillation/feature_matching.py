"""What methods that match feature maps have in common: what else they learn from, and modules that learn beside."""

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
    """A student that also matches the teacher's feature maps, L = L_CE + L_KL + weight L_maps, by modules that learn
    beside it.
    """

    needs_feature_maps = True

    class Hyper(Student.Hyper):
        tau: float = Field(4.0, gt=0, description="temperature, which softens what both say")

    learns = ("w", "bridge")

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        if task.teacher is not None and self.incompatibility() is None:
            with torch.device("meta"):
                self.bridge = self.bridge_between(shapes(task).maps, shapes(self.teacher_task).maps)

    def incompatibility(self) -> str | None:
        if found := super().incompatibility():
            return found
        return feature_map_incompatibility(self.hyper.name, self.task, self.teacher_task)

    def bridge_between(self, student: list[Tensor], teacher: list[Tensor]) -> nn.Module:
        """The modules that learn beside the student, for maps of these shapes."""
        raise NotImplementedError

    def beside(self, cohort: Any) -> Tree:
        return {"bridge": self.drawn(self.bridge, cohort, "bridge")}

    def outputs(self, hp: Any, student: Features, teacher: Features, batch: Batch) -> Tensor:
        """L_CE + L_KL."""
        target = soft_labels(teacher.logits, hp.tau)
        taught = divergence(target, student.logits, batch, hp.tau)
        return self.task.criterion(student.logits, batch) + taught
