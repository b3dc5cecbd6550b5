"""The base class of objectives."""

from collections.abc import Callable, Mapping
from typing import Any, Self

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task

Loss = Callable[[Params, Batch], Tensor]
"""(w, mini-batch) -> a 0-d tensor."""


class Objective(Settings):
    """What clients minimise in place of the task's loss, in every step that the algorithm names in `training_steps`.

    Its fields are its hyperparameters. The step itself minimises `self.task.loss`, and does not know of it.
    """

    kind: str = Field("", description="which objective: its name, or the dotted path of your own")

    def incompatibility(self, task: Task) -> str | None:
        """Why a task cannot be learnt with it: "the key: the reason; the fix". None: it can."""
        return None

    def centralized_incompatibility(self, hyper: Any) -> str | None:
        """The same where all samples are in one place: there are no clients, and `end` is not called.

        hyper: hyperparameters of the algorithm.
        """
        return None

    def task(self, task: Task) -> Task:
        """The task that is learnt in place of the file's."""
        return task

    def batches(self, specs: Mapping[str, BatchSpec]) -> dict[str, BatchSpec]:
        """The mini-batches of a training step, given those of the algorithm."""
        return dict(specs)

    def init_client(self, task: Task) -> Tree:
        """A client's state of this objective; {}: it has none."""
        return {}

    def at(self, round: int, initial: Any, now: Any) -> Self:
        """The values in force in `round`. initial, now: hyperparameters of the algorithm in round 1 and in this one."""
        return self

    def begin(self, task: Task, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Loss, Any]:
        """Before a training step: the loss in place of `task.loss`, and a context for `end`.

        hp: hyperparameters, `hp.objective` of this one and `hp.algorithm` of the algorithm. state: the client's, of
        this objective.
        """
        raise NotImplementedError

    def end(
        self, task: Task, hp: Any, w: Params, state: Tree, context: Any, data: ClientData
    ) -> tuple[Tree, dict[str, Tensor]]:
        """After a client's step: its new state of this objective, and metrics. w: the client's own model."""
        return state, {}

    def reported(self, w: Params) -> Params:
        """The model that is reported and saved, of the one that is trained."""
        return w
