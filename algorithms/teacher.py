"""A teacher: a fixed model that others learn from, `task.teacher`, which is trained before the first lesson or comes
from another run.
"""

from collections.abc import Generator
from typing import Any, ClassVar

import torch
from pydantic import Field

from hedgerow.algorithms.base import SCORED, Algorithm, Batches, ClientData, Cohort, Exchange
from hedgerow.algorithms.central import POOL
from hedgerow.algorithms.local import minimise
from hedgerow.algorithms.settings import Settings
from hedgerow.algorithms.task import Params, Task
from hedgerow.algorithms.trees import Tree, tree_map


class Schooling(Settings):
    """How a teacher is trained: by SGD on the cross-entropy, on all training samples in one place."""

    epochs: int = Field(20, ge=1, description="passes over the training samples")
    batch_size: int | None = Field(50, ge=1, description="samples per step; null: all of them")
    lr: float = Field(0.1, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="heavy-ball momentum")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty")

    clip_norm: ClassVar[None] = None


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
        w, loss = minimise(self.master.loss, down["w"], data, self.task.schooling)
        return {"w": w}, state, {"teacher_loss": loss}

    def look_at_teacher(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        found = [self.master.statistics(down["w"], batch) for batch in data.batches("statistics")]
        return tree_map(lambda *parts: torch.stack(parts).mean(0), *found), state, {}
