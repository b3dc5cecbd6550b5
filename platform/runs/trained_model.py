"""The model of a run as a torch module, and its predictions on raw samples."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from hedgerow.algorithms.core.client_data import EVAL_BATCH_SIZE, Batch
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task, trainable
from hedgerow.algorithms.core.torch_private import BATCH_NORMS
from hedgerow.algorithms.personalized.adaptation import Adapting, adapted
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.models.build import remove_marks
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.runtime.factory import build_module

Support = tuple[ArrayLike, ArrayLike]
"""Samples and labels of a task or of a client, to which a model is adapted."""


@dataclass(frozen=True)
class TrainedModel:
    """Parameters of a model with the algorithm that trained it.

    source: folder of its run or search, for messages. w: parameters as tensors, see `Algorithm.evaluate_params`.
    """

    source: Path
    algorithm: ComposedAlgorithm
    w: Tree

    def predict(self, x: ArrayLike, support: Support | None = None) -> np.ndarray:
        """Predictions for raw samples, stored like those of the data set: probabilities (samples, classes), or, if the
        targets are no classes, `Task.predictions`.

        support: samples and labels of a task, to which a model that learns to adapt is adapted first; None: it predicts
        without adaptation. Raises UserError if the model cannot predict.
        """
        task = self.algorithm.task
        if not task.is_scored:
            raise UserError(f"{self.source}: this task has no predictions, only parameters")
        if task.is_static:
            raise UserError(
                f"{self.source}: the model normalises by statistics of the clients' samples, which it does not "
                "contain; choose a model such as resnet18_gn to predict with it"
            )
        if not trainable(task.module).keys() <= self.w.keys():
            raise UserError(
                f"{self.source}: {self.algorithm.hyper.name} reports a part of the model that it scores, which cannot "
                "predict alone"
            )
        predictor, w = self.adapted(support)
        parts = []
        with torch.no_grad():
            for rows in as_tensor(x).split(EVAL_BATCH_SIZE):
                parts.append(task.predictions(predictor.logits(w, task.prepare(rows))).numpy())
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def module(self, experiment: Experiment, dataset: Dataset, constants: str | None) -> nn.Module:
        """The model with its trained and frozen parameters, in eval mode.

        constants: their fingerprint in the run's record, see `compare_constants`. Raises UserError if they differ, or
        if the algorithm or the objective scores the model through layers of its own.
        """
        module = build_module(experiment, dataset)
        compare_constants(module, constants)
        names = dict(module.named_parameters()).keys()
        if outside := [name for name in trainable(self.algorithm.task.module) if name not in names]:
            raise UserError(
                f"{self.source}: its model is scored through {outside[-1]!r}, which is not part of task.model, so that "
                "the module alone predicts nothing; use its `parameters`"
            )
        return filled(module, self.w)

    def adapted(self, support: Support | None) -> tuple[Task, Params]:
        """Task and parameters after the adaptation to some samples. Raises UserError if the algorithm has none."""
        task = self.algorithm.task
        if support is None:
            return task, self.w
        if not isinstance(self.algorithm.inner, Adapting):
            raise UserError(f"predict: {self.algorithm.hyper.name} does not adapt its model to a task; omit `support`")
        y = as_tensor(support[1])
        batch = Batch(task.prepare(as_tensor(support[0])), y.float() if task.targets == "numbers" else y.long())
        return adapted(task, self.w, batch, self.algorithm.inner.hyper)


def filled(module: nn.Module, w: Tree) -> nn.Module:
    """Module with the values of `w`, by name, in its parameters and buffers, in eval mode. Others stay unchanged.

    Values may have other shapes, as those of a sub-model do. Batch norms whose statistics are not among them normalise
    by those of the mini-batch, as in evaluation.
    """
    mode = getattr(module, "train_mode", None)
    for place, layer in module.named_modules():
        if mode is None or not isinstance(layer, BATCH_NORMS):
            continue
        mean = f"{place}.running_mean"
        if mean not in w and (mode.policy != "average" or mean in mode.buffers):
            for name in ("running_mean", "running_var", "num_batches_tracked"):
                setattr(layer, name, None)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in w:
            tensor.data = as_tensor(w[name])
    remove_marks(module)
    return module.eval()


def as_tensor(values: Any) -> Tensor:
    """Copy of an array or a tensor as a tensor."""
    return values.detach().clone() if isinstance(values, Tensor) else torch.from_numpy(np.array(values))
