"""A teacher: a fixed model that others learn from, `task.teacher`, which is trained before the first lesson or comes
from another run.
"""

from collections.abc import Generator
from itertools import islice
from typing import Any, ClassVar, Self

import numpy as np
import torch
from pydantic import Field

from hedgerow.algorithms.base import SCORED, Algorithm, Batches, ClientData, Cohort, Exchange
from hedgerow.algorithms.central import POOL
from hedgerow.algorithms.local import cosine, minimise
from hedgerow.algorithms.settings import Settings
from hedgerow.algorithms.task import Params, Task
from hedgerow.algorithms.trees import Tree, tree_map, zeros_like


class Schooling(Settings):
    """How a teacher is trained: by SGD on the cross-entropy, on all training samples in one place."""

    epochs: int = Field(20, ge=1, description="passes over the training samples")
    batch_size: int | None = Field(50, ge=1, description="samples per step; null: all of them")
    lr: float = Field(0.1, gt=0, description="learning rate in the first pass")
    lr_cosine: int | None = Field(
        None,
        ge=1,
        description="it falls like a cosine, to nearly 0 in this pass and those after it; null: it does not",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="heavy-ball momentum")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty")

    clip_norm: ClassVar[None] = None

    def at(self, epoch: int) -> Self:
        """What holds in a pass, counted from 1."""
        if self.lr_cosine is None:
            return self
        return self.model_copy(update={"lr": self.lr * cosine(epoch, self.lr_cosine)})


class Taught(Algorithm):
    """An algorithm of which somebody learns from the task's teacher.

    What a teacher says is always what it says when it is scored: with its own statistics, never those of mini-batches.
    """

    def objection(self) -> str | None:
        if self.task.teacher is None:
            return (
                f"task.teacher: {self.hyper.name} learns from a teacher; give it `model`, which is trained first, or "
                "`run`, the folder of the run that trained it"
            )
        return super().objection()

    @property
    def master(self) -> Task:
        """The teacher's own task."""
        return self.task.master

    def teacher(self, cohort: Cohort) -> Generator[Exchange, Any, Params]:
        """Its parameters, and statistics where it normalises by some: in the first round that needs it."""
        w = self.master.init()
        if plan := self.task.schooling:
            lessons = {"train": Batches(plan.batch_size, plan.epochs, views=1)}
            learnt = yield Exchange(self.school, {"w": w}, POOL, batches=lessons, on="pool")
            w = learnt.up["w"]
        if self.master.is_static:
            once = {"statistics": Batches(SCORED, shuffle=False)}
            found = yield Exchange(self.look_at_teacher, {"w": w}, POOL, batches=once, on="pool")
            w = {**w, **found.up}
        return w

    def school(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Where all samples are."""
        plan, w, losses = self.task.schooling, down["w"], []
        memory, batches = zeros_like(w), data.batches("train")
        for epoch in range(1, plan.epochs + 1):
            some = islice(batches, int(data.steps()) // plan.epochs)
            w, loss = minimise(self.master.loss, w, data, plan.at(epoch), batches=some, memory=memory)
            losses.append(loss)
        return {"w": w}, state, {"teacher_loss": torch.stack(losses).mean()}

    def look_at_teacher(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        found = [self.master.statistics(down["w"], batch) for batch in data.batches("statistics")]
        return tree_map(lambda *parts: torch.stack(parts).mean(0), *found), state, {}

    def exam(self, w: Params, cohort: Cohort) -> Exchange:
        """Its score on the test set, which the round's record has as `teacher_test_accuracy`."""
        once = {"test": Batches(SCORED, shuffle=False)}
        return Exchange(self.examine, {"w": w}, np.arange(cohort.test_shards), batches=once, on="test")

    def examine(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        found = [self.master.score(down["w"], batch) for batch in data.batches("test")]
        loss, correct, samples = torch.stack(found).sum(0).unbind(0)
        return {}, state, {"teacher_loss": loss, "teacher_correct": correct, "samples": samples}
