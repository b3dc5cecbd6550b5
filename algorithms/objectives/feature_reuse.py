"""SimKD on the clients: ||Psi(f) - f_t||^2 of the last feature maps (Chen et al., "Knowledge Distillation with the
Reused Teacher Classifier", 2022). The thesis (7.2) names it as a next step, without details.

The model has a projector Psi, which is transmitted with it, and ends in the last layer of the teacher. Its own last
layer is not used.
"""

from typing import Any

from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.task import Params, Task, mean_over
from hedgerow.algorithms.nn.feature_maps import Reusing, apart, no_maps, under_its_teacher
from hedgerow.algorithms.nn.feature_maps import own as student_parameters
from hedgerow.algorithms.nn.features import asked, inside
from hedgerow.algorithms.objectives.distilled import FromTeacher


class ReusedTeacher(FromTeacher):
    """An objective whose model ends in the last layer of the teacher."""

    is_algorithm = True

    def incompatibility(self, task: Task) -> str | None:
        if found := super().incompatibility(task):
            return found
        return no_maps(self.kind, task, task.master) if not isinstance(task.module, Reusing) else None

    def task(self, task: Task) -> Task:
        return under_its_teacher(super().task(task))

    def reported(self, w: Params) -> Params:
        """The model without the projector."""
        return student_parameters(w)


class FeatureReuse(ReusedTeacher):
    """The last feature map of the teacher; `alpha: 0` is the published objective."""

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Any) -> tuple[Tensor, Tensor]:
        seen = inside(task, w, batch.x)
        return seen.logits, mean_over(apart(seen, asked(task, batch.x)), batch)
