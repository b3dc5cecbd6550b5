"""SimKD (Chen et al., "Knowledge Distillation with the Reused Teacher Classifier", 2022)."""

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task, mean_over, with_frozen
from hedgerow.algorithms.distillation.student import Lesson, Student
from hedgerow.algorithms.nn.feature_maps import (
    STUDENT,
    ReusedClassifier,
    feature_distance,
    feature_map_incompatibility,
    last_layer,
    student_parameters,
)
from hedgerow.algorithms.nn.features import Features, extract_features


class SimKD(Student):
    """The student learns the teacher's last map alone, and is scored through its projector and the teacher's last
    layer; these layers stay, so it is larger than the others.
    """

    needs_feature_maps = True

    class Hyper(Student.Hyper):
        warm_start: Literal[0] = Field(0, description="it has no last layer to begin with")  # type: ignore[assignment]
        starts: Literal[1] = Field(1, description="one student")  # type: ignore[assignment]

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        if self.incompatibility() is None:
            # What is not the student's comes with the parameters.
            self.task = replace(task, module=ReusedClassifier(task, self.teacher_task), build=None)

    def incompatibility(self) -> str | None:
        if found := super().incompatibility():
            return found
        return (
            feature_map_incompatibility(self.hyper.name, self.task, self.teacher_task)
            if not isinstance(self.task.module, ReusedClassifier)
            else None
        )

    def init_server(self) -> Tree:
        return {"w": {name: p for name, p in self.task.init().items() if name.startswith(STUDENT)}}

    def started(self, server: Tree, cohort: Cohort) -> Tree:
        if cohort.round > 1:
            return server
        drawn = self.drawn(self.task.module.projector, cohort, "projector")  # type: ignore[arg-type]
        return {**server, "w": server["w"] | {f"projector.{name}": p for name, p in drawn.items()}}

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        """L_ft = ||Psi(f_s) - f_t||^2 of the last maps."""
        teacher = self.says(down, batch)
        return lambda student, aids: mean_over(self.far(student, down, batch, teacher), batch)

    def far(self, student: Tree, down: Tree, batch: Batch, teacher: Features) -> Tensor:
        """The mean squared distance of each sample's maps, (samples,)."""
        return feature_distance(self.shown(student, down, batch), teacher)

    def shown(self, student: Tree, down: Tree, batch: Batch) -> Features:
        """What the student makes of a mini-batch, under the teacher's last layer."""
        return extract_features(self.task, {**student["w"], **self._head(down)}, batch.x)

    def scored(self, server: Tree) -> Tree:
        return {"w": {**server["w"], **self._head(server)}}

    def evaluate_params(self, server: Tree) -> Tree:
        """The student's own: its projector and the teacher's layer are not of the task's model."""
        return student_parameters(server["w"])

    def _head(self, tree: Tree) -> Params:
        return last_layer(self.teacher_task.module, with_frozen(self.teacher_task.module, tree["teacher"]))
