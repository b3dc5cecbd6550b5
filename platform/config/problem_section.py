"""The problem section of an experiment file: the two levels of a task."""

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from hedgerow.algorithms.core.task import Task, trainable
from hedgerow.algorithms.problems.bilevel_task import BilevelTask
from hedgerow.algorithms.problems.cleaning import Cleaning
from hedgerow.algorithms.problems.hyper_representation import HyperRepresentation
from hedgerow.algorithms.problems.quadratic import Coefficients, Quadratic, QuadraticModel
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import import_object
from hedgerow.platform.common.section import Section
from hedgerow.platform.data import Dataset, Partition

PROBLEMS = {
    "cleaning": "hedgerow.platform.config.problem_section:CleaningProblem",
    "hyper_representation": "hedgerow.platform.config.problem_section:HyperRepresentationProblem",
    "quadratic": "hedgerow.platform.config.problem_section:QuadraticProblem",
    "own": "hedgerow.platform.config.problem_section:OwnProblem",
}
"""The classes that `task.problem.kind` may name."""


class Problem(Section):
    """Two levels: x, which is learnt from samples for validation, and y, learnt from those for training given x."""

    kind: str = ""
    """As in the experiment file, which stamps it on."""

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        """The same task with two levels. Raises UserError when the data do not fit."""
        raise NotImplementedError


class CleaningProblem(Problem):
    """Data cleaning: x weighs every training sample, y is the classifier."""

    weights: Literal["sigmoid", "clipped"] = Field(
        "sigmoid",
        description="sigmoid: x are logits, and all weights begin at 1/2; clipped: x are the weights, which begin at 1 "
        "and are kept in [0, 1]",
    )

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        rows, (_, sizes) = partition.rows("train"), partition.shares()["train"]
        starts = np.cumsum(sizes) - sizes
        slots, places = np.zeros((2, len(dataset.y_train)), np.int64)
        slots[rows] = np.arange(len(rows))
        places[rows] = slots[rows] - np.repeat(starts, sizes)
        within = np.arange(sizes.max())
        blocks = np.where(within < sizes[:, None], starts[:, None] + within, len(rows))
        seen = dataset.y_train if partition.labels is None else partition.labels
        arrays = {"blocks": blocks, "slots": slots, "places": places, "wrong": seen[rows] != dataset.y_train[rows]}
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Cleaning(**task.fields, weights=self.weights, **tensors)


class HyperRepresentationProblem(Problem):
    """Hyper-representation learning: x is the backbone, y the last layer."""

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        owners = [name for name, layer in task.module.named_modules() if any(True for _ in layer.parameters(False))]
        learnt = trainable(task.module)
        head = tuple(name for name in learnt if name.rpartition(".")[0] == owners[-1])
        if len(owners) > 1 and not 0 < len(head) < len(learnt):
            raise UserError(
                "task.problem.kind: hyper_representation trains a backbone and a last layer, and in this model one of "
                "them is frozen (requires_grad=False); train some parameters of both"
            )
        if len(owners) < 2:
            raise UserError(
                "task.problem.kind: hyper_representation needs a model with a backbone and a last layer; this one has "
                "a single layer, so choose mlp or cnn"
            )
        return HyperRepresentation(**task.fields, head=head)


class QuadraticProblem(Problem):
    """The quadratic problem, whose solution is known: `data: {name: quadratic}` with `model: {name: quadratic}`."""

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        assert isinstance(task.module, QuadraticModel)
        p, d = len(task.module.x), len(task.module.y)
        starts = Coefficients.ends(p, d)["c"]
        shares = partition.shares()
        parts = {share: _means(dataset.x_train, partition, *shares[share]) for share in ("train", "validation")}
        clients = np.concatenate([parts["train"][:, :starts], parts["validation"][:, starts:]], axis=1)
        return Quadratic(**task.fields, clients=torch.from_numpy(clients))


class OwnProblem(Problem):
    """Your own two levels: `name` is the dotted path of a BilevelTask, `args` goes to its constructor."""

    name: str = Field(description="dotted path of a class that derives from hedgerow's BilevelTask")
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor")

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        problem = import_object(self.name, BilevelTask, "a problem of two levels", "task.problem.name")
        try:
            return problem(**task.fields, **self.args)
        except TypeError as error:
            raise UserError(
                f"task.problem.args: {self.name} cannot be made from them ({error}); give the fields that it adds to a "
                "task's, by name"
            ) from error


def _means(x: np.ndarray, partition: Partition, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Of each client's samples, in double precision."""
    rows = (partition.order[s : s + n] for s, n in zip(starts, sizes, strict=True))
    return np.stack([x[some].astype(np.float64).mean(0) if len(some) else x[0] * 0.0 for some in rows])
