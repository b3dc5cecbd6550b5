"""The `task.problem` section of an experiment file: bilevel problems."""

from typing import Any, ClassVar, Literal

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
"""Classes that `task.problem.kind` can name."""


class Problem(Section):
    """Bilevel problem: x is learnt from the validation samples, and y from the training samples given x."""

    needs_classes: ClassVar[bool] = False
    """Whether the task must be a classification, with one class per sample and logits as outputs."""

    needs_cross_entropy: ClassVar[bool] = False
    """Whether a level of the problem minimises the cross-entropy, whatever `task.loss` is."""

    kind: str = ""
    """Value in the experiment file; the registry sets it."""

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        """Returns the task as a bilevel task. Raises UserError if the data do not fit."""
        raise NotImplementedError


class CleaningProblem(Problem):
    """Data cleaning: x holds the weights of the training samples, y is the classifier."""

    needs_classes: ClassVar[bool] = True
    needs_cross_entropy: ClassVar[bool] = True

    weights: Literal["sigmoid", "clipped"] = Field(
        "sigmoid",
        description="sigmoid: x holds logits, and all weights start at 1/2; clipped: x holds the weights, which start "
        "at 1 and are clipped to [0, 1]",
    )

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        rows, (_, sizes) = partition.rows("train"), partition.splits()["train"]
        starts = np.cumsum(sizes) - sizes
        slots, places = np.zeros((2, len(dataset.y_train)), np.int64)
        slots[rows] = np.arange(len(rows))
        places[rows] = slots[rows] - np.repeat(starts, sizes)
        within = np.arange(sizes.max())
        blocks = np.where(within < sizes[:, None], starts[:, None] + within, len(rows))
        labels = dataset.y_train if partition.labels is None else partition.labels
        arrays = {"blocks": blocks, "slots": slots, "places": places, "wrong": labels[rows] != dataset.y_train[rows]}
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Cleaning(**task.fields, weights=self.weights, **tensors)


class HyperRepresentationProblem(Problem):
    """Hyper-representation learning: x is the backbone, y the last layer."""

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        owners = [name for name, layer in task.module.named_modules() if any(True for _ in layer.parameters(False))]
        parameters = trainable(task.module)
        head = tuple(name for name in parameters if name.rpartition(".")[0] == owners[-1])
        if len(owners) > 1 and not 0 < len(head) < len(parameters):
            raise UserError(
                "task.problem.kind: hyper_representation trains a backbone and a last layer, but in this model one of "
                "them is frozen (requires_grad=False); train some parameters of both"
            )
        if len(owners) < 2:
            raise UserError(
                "task.problem.kind: hyper_representation needs a model with a backbone and a last layer; this one has "
                "a single layer, so choose mlp or cnn"
            )
        return HyperRepresentation(**task.fields, head=head)


class QuadraticProblem(Problem):
    """Quadratic problem with a known solution, for `data: {name: quadratic}` and `model: {name: quadratic}`."""

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        assert isinstance(task.module, QuadraticModel)
        p, d = len(task.module.x), len(task.module.y)
        starts = Coefficients.ends(p, d)["c"]
        splits = partition.splits()
        parts = {split: _means(dataset.x_train, partition, *splits[split]) for split in ("train", "validation")}
        clients = np.concatenate([parts["train"][:, :starts], parts["validation"][:, starts:]], axis=1)
        return Quadratic(**task.fields, clients=torch.from_numpy(clients))


class OwnProblem(Problem):
    """Your own bilevel problem: `name` is the dotted path of a BilevelTask, `args` are its constructor arguments."""

    dotted_key: ClassVar[str] = "name"

    name: str = Field(description="dotted path of a class that derives from hedgerow's BilevelTask")
    args: dict[str, Any] = Field({}, description="keyword arguments of its constructor")

    def build(self, task: Task, dataset: Dataset, partition: Partition) -> BilevelTask:
        problem = import_object(self.name, BilevelTask, "a bilevel problem", "task.problem.name")
        try:
            return problem(**task.fields, **self.args)
        except TypeError as error:
            raise UserError(
                f"task.problem.args: {self.name} cannot be constructed from these arguments ({error}); name each field "
                "that it adds to those of a task"
            ) from error


def _means(x: np.ndarray, partition: Partition, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Mean of each client's samples, in double precision; zeros for a client without samples."""
    rows = (partition.order[s : s + n] for s, n in zip(starts, sizes, strict=True))
    return np.stack([x[some].astype(np.float64).mean(0) if len(some) else x[0] * 0.0 for some in rows])
