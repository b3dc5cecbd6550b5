"""SimKD on the clients: ||Psi(f) - f_t||^2 of the last feature maps (Chen et al., "Knowledge Distillation with the
Reused Teacher Classifier", 2022). The thesis (7.2) names it as a next step, without details.

The model has a projector Psi, which is transmitted with it, and ends in the last layer of the teacher. Its own last
layer is not used.
"""

from typing import Any

from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.task import Params, Task, mean_over
from hedgerow.algorithms.nn.feature_maps import (
    feature_distance,
    feature_map_incompatibility,
    student_parameters,
    with_teacher_classifier,
)
from hedgerow.algorithms.nn.features import extract_features, teacher_features
from hedgerow.algorithms.objectives.distilled import FromTeacher


class ReusedTeacher(FromTeacher):
    """An objective whose model ends in the last layer of the teacher."""

    calls_logits = False

    is_algorithm = True

    def incompatibility(self, task: Task) -> str | None:
        return super().incompatibility(task) or feature_map_incompatibility(self.kind, task, task.teacher_task)

    def task(self, task: Task) -> Task:
        return with_teacher_classifier(super().task(task))

    def reported(self, w: Params) -> Params:
        """Returns the model without the projector."""
        return student_parameters(w)


class FeatureReuse(ReusedTeacher):
    """SimKD: the model learns the last feature map of the teacher; `alpha: 0` is the published objective."""

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Any) -> tuple[Tensor, Tensor]:
        student = extract_features(task, w, batch.x)
        return student.logits, mean_over(feature_distance(student, teacher_features(task, batch.x)), batch)
