"""DiSK: distilling selective knowledge (thesis, chapter 6, Algorithm 7)."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, Self

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import ONCE, Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Task, mean_over
from hedgerow.algorithms.distillation.student import Lesson, Student
from hedgerow.algorithms.nn.features import shapes
from hedgerow.algorithms.objectives.distillation_loss import soft_labels
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


class Guided(Guidance, Student.Hyper):
    """Hyperparameters of algorithms with a guide."""

    alpha: float = Field(0.1, ge=0, le=1, description="weight of the labels")
    tau: float = Field(4.0, gt=0, description="temperature that softens the teacher's outputs")

    def at(self, round: int) -> Self:
        now = super().at(round)
        return now.model_copy(update={"guide_lr": now.lr * (self.guide_lr or self.lr) / self.lr})


class DiSK(Student):
    """Trains the guide against the student in every round, then the student with the guide's excuses [Acar2023].

    Both take `epochs` passes, or `steps` steps, each with its own shuffled mini-batches. The student's step omits the
    budget, as the source does, which is more stable.
    """

    Hyper = Guided

    aids = ("guide", "student_tau")

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        if task.teacher is not None:
            outputs = shapes(self.teacher_task)
            # The parameters of the guide are in the server state, so this module needs no memory.
            with torch.device("meta"):
                self.guide = guide_network(outputs.features.shape[-1] + outputs.logits.shape[-1], hyper.guide_hidden)

    def extra_modules(self, cohort: Cohort) -> Tree:
        return {"guide": self.drawn(self.guide, cohort, "guide")}

    def known(self, lesson: int) -> Tree:
        hyper = self.hyper
        weight = multiplier(lesson, hyper.lambda_min, hyper.lambda_max, hyper.lambda_period)
        return {"multiplier": torch.tensor(weight)}

    def batches(self, cohort: Cohort) -> dict[str, BatchSpec]:
        lessons = self.hyper.batches["train"]
        once = {"fit": ONCE} if self.hyper.student_tau == "fit" else {}
        return {"train": lessons, "guide": lessons, **once}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        self.teacher_outputs.prepare(self.teacher_task, down["teacher"], data)
        scored = data.batches("fit") if hp.student_tau == "fit" else ()
        down = {**down, "student_tau": self.softness(hp, down, scored)}

        def total(guide: Tree, batch: Batch) -> Tensor:
            return self.each(self.excuse(hp, down, batch), guide, students).sum()

        students = {key: down[key] for key in (*self.learns, "student_tau")}
        steps = SimpleNamespace(**{**dict(hp), "lr": hp.guide_lr})
        memory = dict(down["momentum"]["guide"]) if "momentum" in down else None
        guide, value = minimize(total, down["guide"], data, steps, batches=data.batches("guide"), memory=memory)
        first = next(data.batches("guide"))
        excused = self.each(lambda guide: mean_over(excuses(self.guide, guide, self.says(down, first)), first), guide)
        up, state, metrics = super().train(hp, {**down, "guide": guide}, state, data)
        if memory is not None:
            up["momentum"]["guide"] = memory
        return {**up, "guide": guide}, state, metrics | {"guide_loss": value / hp.starts, "excused": excused.mean()}

    def excuse(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        """Loss of the guide (line 2): (1 - alpha) L_dist + lambda L_bud, with the student fixed."""
        teacher = self.says(down, batch)
        target = soft_labels(teacher.logits, hp.tau)

        def loss(guide: Tree, student: Tree) -> Tensor:
            logits, g = self.answers(student, down, batch), excuses(self.guide, guide, teacher)
            softness = student["student_tau"]
            far = distance(logits, target, g, batch, hp.tau, softness, hp.top_k)
            spent = overspent(logits, g, batch, hp.delta, hp.budget_over, hp.budget_of)
            return (1 - hp.alpha) * far + down["multiplier"] * spent

        return loss

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        """Loss of the student (line 3): alpha L_CE + (1 - alpha) L_dist, with the guide fixed."""
        teacher = self.says(down, batch)
        target = soft_labels(teacher.logits, hp.tau)

        def loss(student: Tree, aids: Tree) -> Tensor:
            logits, g = self.answers(student, down, batch), excuses(self.guide, aids["guide"], teacher)
            softness = aids["student_tau"]
            far = distance(logits, target, g, batch, hp.tau, softness, hp.top_k)
            return hp.alpha * self.task.criterion(logits, batch) + (1 - hp.alpha) * far

        return loss

    def answers(self, student: Tree, down: Tree, batch: Batch) -> Tensor:
        """Logits of the student."""
        return self.task.logits(student["w"], batch.x)

    def softness(self, hp: Any, down: Tree, batches: Iterable[Batch]) -> Tensor:
        """tau_s of each student, 0-d for a single student. batches: all samples, if tau_s is fitted."""
        setting = hp.tau if hp.student_tau == "teacher" else hp.student_tau
        if setting != "fit":
            device = next(iter(down["w"].values())).device
            return torch.full((hp.starts,) if hp.starts > 1 else (), setting, device=device)

        def answers(student: Tree) -> Tensor:
            return torch.cat([self.answers(student, down, batch) for batch in samples])

        samples = list(batches)
        target = soft_labels(torch.cat([self.says(down, batch).logits for batch in samples]), hp.tau)
        with torch.no_grad():
            return self.each(lambda w: fitted_temperature(target, answers(w)), {key: down[key] for key in self.learns})
