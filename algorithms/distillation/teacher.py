"""Teacher: a fixed model, `task.teacher`, that others learn from.

It is trained before the first lesson, or comes from another run.
"""

from collections.abc import Generator
from itertools import islice
from typing import Any

import numpy as np
import torch

from hedgerow.algorithms.core.algorithm import Algorithm, mean_statistics
from hedgerow.algorithms.core.client_data import ONCE, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange
from hedgerow.algorithms.core.pytree import Tree, zeros_like
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.optim.local_sgd import minimize


class Taught(Algorithm):
    """Base class of algorithms that learn from the task's teacher.

    The teacher answers in evaluation mode: it normalises by its own statistics, never by those of mini-batches.
    """

    needs = frozenset({"classes", "teacher"})

    def incompatibility(self) -> str | None:
        if self.task.teacher is None:
            return (
                f"task.teacher: {self.hyper.name} learns from a teacher; set `model` to train one first, or "
                "`run` to the folder of the run that trained it"
            )
        return super().incompatibility()

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
