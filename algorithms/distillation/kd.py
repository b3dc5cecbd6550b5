"""Knowledge distillation (Hinton, Vinyals, Dean, 2015; thesis, Eq. 6.1)."""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.distillation.student import Lesson, Student
from hedgerow.algorithms.objectives.distillation_loss import divergence, soft_labels


class KD(Student):
    """Minimises alpha L_CE + (1 - alpha) tau^2 KL(teacher || student), both softened by tau [Hinton2015]."""

    class Hyper(Student.Hyper):
        alpha: float = Field(0.1, ge=0, le=1, description="weight of the labels; the rest is the teacher's")
        tau: float = Field(4.0, gt=0, description="temperature that softens the outputs of student and teacher")

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        target = soft_labels(self.says(down, batch).logits, hp.tau)

        def loss(student: Tree, aids: Tree) -> Tensor:
            logits = self.task.logits(student["w"], batch.x)
            distillation = divergence(target, logits, batch, hp.tau)
            return hp.alpha * self.task.criterion(logits, batch) + (1 - hp.alpha) * distillation

        return loss
