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
    """The student learns only the teacher's last map, and is scored through its projector and the teacher's last layer
    [Chen2022].

    These layers stay part of the model, so it is larger than the other students.
    """

    needs = Student.needs | {"feature_maps"}

    class Hyper(Student.Hyper):
        warm_start: Literal[0] = Field(0, description="always 0: no last layer of its own")  # type: ignore[assignment]
        starts: Literal[1] = Field(1, description="always 1")  # type: ignore[assignment]

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        if self.incompatibility() is None:
            # The teacher's layer gets its weights from the server state.
            self.task = replace(task, module=ReusedClassifier(task, self.teacher_task), build=None)

    def incompatibility(self) -> str | None:
        return super().incompatibility() or feature_map_incompatibility(self.hyper.name, self.task, self.teacher_task)

    def init_server(self) -> Tree:
        return {"w": {name: p for name, p in self.task.init().items() if name.startswith(STUDENT)}}

    def started(self, server: Tree, cohort: Cohort) -> Tree:
        if cohort.round > 1:
            return server
        projector = self.drawn(self.task.module.projector, cohort, "projector")  # type: ignore[arg-type]
        return {**server, "w": server["w"] | {f"projector.{name}": p for name, p in projector.items()}}

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        """Loss L_ft = ||Psi(f_s) - f_t||^2 of the last maps."""
        teacher = self.says(down, batch)
        return lambda student, aids: mean_over(self.far(student, down, batch, teacher), batch)

    def far(self, student: Tree, down: Tree, batch: Batch, teacher: Features) -> Tensor:
        """Mean squared distance between the maps of each sample, (samples,)."""
        return feature_distance(self.shown(student, down, batch), teacher)

    def shown(self, student: Tree, down: Tree, batch: Batch) -> Features:
        """Outputs of the student on a mini-batch, through the teacher's last layer."""
        return extract_features(self.task, {**student["w"], **self._head(down)}, batch.x)

    def scored(self, server: Tree) -> Tree:
        return {"w": {**server["w"], **self._head(server)}}

    def evaluate_params(self, server: Tree) -> Tree:
        """Parameters of the student; its projector and the teacher's layer are not part of the task's model."""
        return student_parameters(server["w"])

    def _head(self, tree: Tree) -> Params:
        return last_layer(self.teacher_task.module, with_frozen(self.teacher_task.module, tree["teacher"]))
