"""What all have in common who teach one model by another, in one place: warm start, teacher, then lessons."""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, flatten, unflatten
from hedgerow.algorithms.core.task import drawn
from hedgerow.algorithms.distillation.teacher import Taught
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.nn.features import Features, extract_features
from hedgerow.algorithms.optim.local_sgd import minimize

Lesson = Callable[[Tree, Tree], Tensor]
"""The loss of one student on one mini-batch: (the branches that learn, its aids) -> 0-d."""


class Student(Taught, Central):
    """A round is `epochs` passes over the pooled samples, or `steps`; the first `warm_start` are without a teacher."""

    class Hyper(Central.Hyper):
        warm_start: int = Field(
            0,
            ge=0,
            description="rounds at the beginning in which the student learns from labels alone; then the learning rate "
            "begins anew",
        )

        def at(self, round: int) -> Self:
            return super().at(round - self.warm_start if round > self.warm_start else round)

    training_steps = ()

    learns: ClassVar[tuple[str, ...]] = ("w",)
    """The branches of the server's state that the student's lessons move."""

    moved = ("w", "bridge", "guide")

    aids: ClassVar[tuple[str, ...]] = ()
    """What else of `down` each student has for itself."""

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        server = self.remembering(self.started(server, cohort))
        if cohort.round <= self.hyper.warm_start:
            learnt = yield Exchange(self.warm_up, server, POOL, batches=self.hyper.batches, on="pool")
            return {**server, **learnt.up}
        begins = "teacher" not in server
        if begins:
            teacher = yield from self.teacher(cohort)
            server = self.remembering({"w": server["w"], "teacher": teacher, **self.beside(cohort)})
        known = self.known(cohort.round - self.hyper.warm_start)
        learnt = yield Exchange(self.train, server, POOL, batches=self.batches(cohort), on="pool", local_inputs=known)
        if begins:
            # After the lesson, whose mini-batches are drawn by the number of its exchange.
            yield self.evaluate_teacher(server["teacher"], cohort)
        return {**server, **learnt.up}

    def beside(self, cohort: Cohort) -> Tree:
        """What is trained beside the student, before its first lesson."""
        return {}

    def known(self, lesson: int) -> Tree:
        """What the schedule says. lesson: the round, counted from 1 where the teacher begins."""
        return {}

    def warm_up(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        return Central.train(self, hp, down, state, data)

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        def total(flat: Tree, batch: Batch) -> Tensor:
            return self.each(self.lesson(hp, down, batch), unflatten(flat), aids).sum()

        aids = {key: down[key] for key in self.aids}
        memory = flatten({key: down["momentum"][key] for key in self.learns}) if "momentum" in down else None
        start = flatten({key: down[key] for key in self.learns})
        learnt, value = minimize(total, start, data, hp, memory=memory)
        lasting = {} if memory is None else {"momentum": unflatten(memory)}
        return {**unflatten(learnt), **lasting}, state, {"loss": value / hp.starts}

    def lesson(self, hp: Any, down: Tree, batch: Batch) -> Lesson:
        raise NotImplementedError

    def says(self, down: Tree, batch: Batch) -> Features:
        """What the teacher makes of a mini-batch."""
        with torch.no_grad():
            return extract_features(self.teacher_task, down["teacher"], batch.x)

    def drawn(self, module: nn.Module, cohort: Cohort, name: str) -> Tree:
        """Initial parameters of a module, for each student."""
        generators = [torch.Generator().manual_seed(cohort.seed_for(f"{name} {i}")) for i in range(self.hyper.starts)]
        return self._side_by_side([drawn(module, generator) for generator in generators])
