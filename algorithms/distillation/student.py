"""Base class of centralised distillation from one model to another: warm start, teacher, then lessons.

The teacher is a fixed model, `task.teacher`. It is trained before the first lesson, or comes from another run.
"""

from collections.abc import Callable, Generator
from itertools import islice
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from hedgerow.algorithms.core.algorithm import mean_statistics
from hedgerow.algorithms.core.client_data import ONCE, Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, flatten, unflatten, zeros_like
from hedgerow.algorithms.core.task import Params, Task, drawn
from hedgerow.algorithms.distillation.teacher_outputs import STREAM, TeacherOutputs
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.nn.features import Features
from hedgerow.algorithms.optim.local_sgd import minimize

Lesson = Callable[[Tree, Tree], Tensor]
"""Loss of one student on one mini-batch: (the branches that learn, its aids) -> 0-d."""


class Student(Central):
    """Centralised distillation; a round is `epochs` passes over the pooled samples, or `steps` steps.

    The first `warm_start` rounds are without a teacher. It answers in evaluation mode: it normalises by its own
    statistics, never by those of mini-batches.
    """

    needs = frozenset({"classes", "teacher"})

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

    def incompatibility(self) -> str | None:
        if self.task.teacher is None:
            return (
                f"task.teacher: {self.hyper.name} learns from a teacher; set `model` to train one first, or "
                "`run` to the folder of the run that trained it"
            )
        return super().incompatibility()

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

    # ---- the teacher -------------------------------------------------------------------------------------------------

    @property
    def teacher_task(self) -> Task:
        """Task of the teacher."""
        return self.task.teacher_task

    def teacher(self, cohort: Cohort) -> Generator[Exchange, Any, Params]:
        """Parameters of the teacher, and its normalisation statistics if any, in the first round that needs them."""
        w = self.teacher_task.init()
        if training := self.task.teacher_training:
            lessons = {"train": BatchSpec(training.batch_size, training.epochs, views=1)}
            result = yield Exchange(self.train_teacher, {"w": w}, POOL, batches=lessons, site="pool")
            w = result.up["w"]
        if self.teacher_task.is_static:
            statistics = yield Exchange(
                self.teacher_batch_norm_statistics, {"w": w}, POOL, batches={"statistics": ONCE}, site="pool"
            )
            w = {**w, **statistics.up}
        return w

    def train_teacher(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Trains the teacher on the pooled samples."""
        training, w, losses = self.task.teacher_training, down["w"], []
        memory, batches = zeros_like(w), data.batches("train")
        steps = int(data.steps())
        # The check of a contract takes fewer steps than there are passes.
        for epoch in range(1, min(training.epochs, max(steps, 1)) + 1):
            epoch_batches = islice(batches, steps // training.epochs)
            w, loss = minimize(
                self.teacher_task.loss, w, data, training.at(epoch), batches=epoch_batches, memory=memory
            )
            losses.append(loss)
        return {"w": w}, state, {"teacher_loss": torch.stack(losses).mean()}

    def teacher_batch_norm_statistics(
        self, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        return mean_statistics(lambda batch: self.teacher_task.statistics(down["w"], batch), data), state, {}

    def evaluate_teacher(self, w: Params, cohort: Cohort) -> Exchange:
        """Exchange that scores the teacher on the test set, as `teacher_test_accuracy` in the round's record."""
        return Exchange(self.examine, {"w": w}, np.arange(cohort.test_shards), batches={"test": ONCE}, site="test")

    def examine(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        task = self.teacher_task.with_accuracy
        scores = [task.score(down["w"], batch) for batch in data.batches("test")]
        totals = task.by_name(torch.stack(scores).sum(0))
        samples = totals.pop("samples")
        return {}, state, {f"teacher_{name}": total for name, total in totals.items()} | {"samples": samples}
