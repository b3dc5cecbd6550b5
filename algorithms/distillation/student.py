"""Base class of centralised distillation from one model to another: warm start, teacher, then lessons."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import ONCE, Batch, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, flatten, unflatten
from hedgerow.algorithms.core.task import Task, drawn
from hedgerow.algorithms.distillation.teacher import Taught
from hedgerow.algorithms.distillation.teacher_outputs import STREAM, TeacherOutputs
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.nn.features import Features
from hedgerow.algorithms.optim.local_sgd import minimize

Lesson = Callable[[Tree, Tree], Tensor]
"""Loss of one student on one mini-batch: (the branches that learn, its aids) -> 0-d."""


class Student(Taught, Central):
    """Centralised distillation; a round is `epochs` passes over the pooled samples, or `steps` steps.

    The first `warm_start` rounds are without a teacher.
    """

    class Hyper(Central.Hyper):
        warm_start: int = Field(
            0,
            ge=0,
            description="initial rounds in which the student learns from labels only; afterwards the learning rate "
            "schedule restarts",
        )

        def at(self, round: int) -> Self:
            return super().at(round - self.warm_start if round > self.warm_start else round)

    training_steps = ()

    learns: ClassVar[tuple[str, ...]] = ("w",)
    """Branches of the server state that the student's lessons train."""

    moved = ("w", "bridge", "guide")

    aids: ClassVar[tuple[str, ...]] = ()
    """Other branches of `down` that each student has for itself."""

    def __init__(self, hyper: Any, task: Task):
        super().__init__(hyper, task)
        self.teacher_outputs = TeacherOutputs("feature_maps" in self.needs)

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        server = self.remembering(self.started(server, cohort))
        if cohort.round <= self.hyper.warm_start:
            result = yield Exchange(self.warm_up, server, POOL, batches=self.hyper.batches, site="pool")
            return {**server, **result.up}
        is_first_lesson = "teacher" not in server
        if is_first_lesson:
            teacher = yield from self.teacher(cohort)
            server = self.remembering({"w": server["w"], "teacher": teacher, **self.extra_modules(cohort)})
        known = self.known(cohort.round - self.hyper.warm_start)
        batches = {**self.batches(cohort), STREAM: ONCE}
        result = yield Exchange(self.train, server, POOL, batches=batches, site="pool", local_inputs=known)
        if is_first_lesson:
            # After the lesson, because mini-batches depend on the number of their exchange.
            yield self.evaluate_teacher(server["teacher"], cohort)
        return {**server, **result.up}

    def extra_modules(self, cohort: Cohort) -> Tree:
        """Initial state of what is trained together with the student, before its first lesson."""
        return {}

    def known(self, lesson: int) -> Tree:
        """Inputs from the schedule. lesson: the round, counted from 1 where the teacher begins."""
        return {}

    def warm_up(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        return Central.train(self, hp, down, state, data)

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        def total(flat: Tree, batch: Batch) -> Tensor:
            return self.each(self.lesson(hp, down, batch), unflatten(flat), aids).sum()

        self.teacher_outputs.prepare(self.teacher_task, down["teacher"], data)
        aids = {key: down[key] for key in self.aids}
        memory = flatten({key: down["momentum"][key] for key in self.learns}) if "momentum" in down else None
        start = flatten({key: down[key] for key in self.learns})
        result, value = minimize(total, start, data, hp, memory=memory)
        momentum = {} if memory is None else {"momentum": unflatten(memory)}
        return {**unflatten(result), **momentum}, state, {"loss": value / hp.starts}

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        raise NotImplementedError

    def says(self, down: Tree, batch: Batch) -> Features:
        """Outputs of the teacher on a mini-batch."""
        return self.teacher_outputs.on(self.teacher_task, down["teacher"], batch)

    def drawn(self, module: nn.Module, cohort: Cohort, name: str) -> Tree:
        """Initial parameters of a module, for each student."""
        generators = [torch.Generator().manual_seed(cohort.seed_for(f"{name} {i}")) for i in range(self.hyper.starts)]
        return self._side_by_side([drawn(module, generator) for generator in generators])
