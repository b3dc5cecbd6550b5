"""SimKD with DiSK's guide (thesis, Eq. A.1)."""

from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import mean_over
from hedgerow.algorithms.distillation.disk import DiSK, Guided
from hedgerow.algorithms.distillation.simkd import SimKD
from hedgerow.algorithms.distillation.student import Lesson
from hedgerow.algorithms.objectives.guide import excuses


class SimKDDiSK(SimKD, DiSK):
    """SimKD with the student loss mean (1 - g(x)) ||Psi(f_s) - f_t||^2, where g is the guide of DiSK [Acar2023].

    The guide learns as in DiSK, from the logits of the teacher's last layer on the student's projected map. The source
    does not specify how to combine the two.
    """

    class Hyper(Guided):
        warm_start: Literal[0] = Field(0, description="always 0: no last layer of its own")  # type: ignore[assignment]
        starts: Literal[1] = Field(1, description="always 1")  # type: ignore[assignment]

    def answers(self, student: Tree, down: Tree, batch: Batch) -> Tensor:
        return self.shown(student, down, batch).logits

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        """Loss L_ft-g."""
        teacher = self.says(down, batch)

        def loss(student: Tree, aids: Tree) -> Tensor:
            g = excuses(self.guide, aids["guide"], teacher)
            return mean_over((1 - g) * self.far(student, down, batch, teacher), batch)

        return loss
