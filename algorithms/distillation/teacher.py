"""A teacher: a fixed model that others learn from, `task.teacher`, which is trained before the first lesson or comes
from another run.
"""

from collections.abc import Generator
from itertools import islice
from typing import Any

import numpy as np
import torch

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import EVAL_BATCH_SIZE, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange
from hedgerow.algorithms.core.pytree import Tree, tree_map, zeros_like
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.optim.local_sgd import minimize


class Taught(Algorithm):
    """An algorithm that learns from the task's teacher.

    The teacher's answers are those that it gives when it is scored: with its own statistics, never with those of
    mini-batches.
    """

    needs_teacher = True

    def incompatibility(self) -> str | None:
        if self.task.teacher is None:
            return (
                f"task.teacher: {self.hyper.name} learns from a teacher; give it `model`, which is trained first, or "
                "`run`, the folder of the run that trained it"
            )
        return super().incompatibility()

    @property
    def teacher_task(self) -> Task:
        """The teacher's own task."""
        return self.task.teacher_task

    def teacher(self, cohort: Cohort) -> Generator[Exchange, Any, Params]:
        """Its parameters, and statistics where it normalises by some: in the first round that needs it."""
        w = self.teacher_task.init()
        if plan := self.task.teacher_training:
            lessons = {"train": BatchSpec(plan.batch_size, plan.epochs, views=1)}
            learnt = yield Exchange(self.train_teacher, {"w": w}, POOL, batches=lessons, on="pool")
            w = learnt.up["w"]
        if self.teacher_task.is_static:
            once = {"statistics": BatchSpec(EVAL_BATCH_SIZE, shuffle=False)}
            found = yield Exchange(self.teacher_batch_norm_statistics, {"w": w}, POOL, batches=once, on="pool")
            w = {**w, **found.up}
        return w

    def train_teacher(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Where all samples are."""
        plan, w, losses = self.task.teacher_training, down["w"], []
        memory, batches = zeros_like(w), data.batches("train")
        for epoch in range(1, plan.epochs + 1):
            some = islice(batches, int(data.steps()) // plan.epochs)
            w, loss = minimize(self.teacher_task.loss, w, data, plan.at(epoch), batches=some, memory=memory)
            losses.append(loss)
        return {"w": w}, state, {"teacher_loss": torch.stack(losses).mean()}

    def teacher_batch_norm_statistics(
        self, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        found = [self.teacher_task.statistics(down["w"], batch) for batch in data.batches("statistics")]
        return tree_map(lambda *parts: torch.stack(parts).mean(0), *found), state, {}

    def evaluate_teacher(self, w: Params, cohort: Cohort) -> Exchange:
        """Its score on the test set, which the round's record has as `teacher_test_accuracy`."""
        once = {"test": BatchSpec(EVAL_BATCH_SIZE, shuffle=False)}
        return Exchange(self.examine, {"w": w}, np.arange(cohort.test_shards), batches=once, on="test")

    def examine(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        found = [self.teacher_task.score(down["w"], batch) for batch in data.batches("test")]
        loss, correct, samples = torch.stack(found).sum(0).unbind(0)
        return {}, state, {"teacher_loss": loss, "teacher_correct": correct, "samples": samples}
