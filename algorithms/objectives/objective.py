"""The base class of objectives."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task

Loss = Callable[[Params, Batch], Tensor]
"""(w, mini-batch) -> a 0-d tensor."""


class Objective(Settings):
    """A loss that clients minimise instead of the task's loss, in every step that the algorithm lists in
    `training_steps`.

    Its fields are its hyperparameters. The step itself minimises `self.task.loss` and is not aware of the objective.
    """

    calls_logits: ClassVar[bool] = True
    """Whether its loss calls the model only by `Task.logits`, so that batch norm and dropout work with it."""

    needs_classes: ClassVar[bool] = False
    """Whether the task must be a classification, with one class per sample and logits as outputs."""

    kind: str = Field("", description="objective: its name, or the dotted path of your own")

    def incompatibility(self, task: Task) -> str | None:
        """Returns why a task cannot be learnt with it: "KEY: the reason; the fix". None if it can."""
        return None

    def centralized_incompatibility(self, hyper: Any) -> str | None:
        """Returns why it does not support centralised training, without clients and calls of `end`; None if it does.

        hyper: hyperparameters of the algorithm.
        """
        return None

    def task(self, task: Task) -> Task:
        """Returns the task to learn instead of the task of the experiment file."""
        return task

    def batches(self, specs: Mapping[str, BatchSpec]) -> dict[str, BatchSpec]:
        """Returns the mini-batches of a training step, given those of the algorithm."""
        return dict(specs)

    def init_client(self, task: Task) -> Tree:
        """Returns a client's initial state of this objective; {}: stateless."""
        return {}

    def at(self, round: int, initial: Any, now: Any) -> Self:
        """Returns the values in effect in `round`. initial, now: the algorithm's hyperparameters in round 1 and now."""
        return self

    def begin(self, task: Task, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Loss, Any]:
        """Called before a training step: returns the loss that replaces `task.loss`, and a context for `end`.

        hp: hyperparameters, `hp.objective` of this objective and `hp.algorithm` of the algorithm.
        state: the client's state of this objective.
        """
        raise NotImplementedError

    def end(
        self, task: Task, hp: Any, w: Params, state: Tree, context: Any, data: ClientData
    ) -> tuple[Tree, dict[str, Tensor]]:
        """Called after a client's step: returns its new state of this objective, and metrics. w: the client's model."""
        return state, {}

    def reported(self, w: Params) -> Params:
        """Returns the model to report and save, given the trained model."""
        return w
