"""Consistency: a model makes the same predictions on two versions of a sample.

    robustness  tau^2 KL(w^tau(x_a), w^tau(x_b)) of two augmentations (thesis, Eq. 7.2)
    stability   tau^2 KL(w^tau(x_a), w^tau(x_a + noise)) (Zheng et al., "Improving the Robustness of Deep Neural
                Networks via Stability Training", 2016; the thesis names it without a formula)

KL(p, q) = sum p log(p / q); w^tau(x) is the softmax of the logits divided by tau.
"""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.keyed_random import normal
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.objectives.auxiliary import AuxiliaryLoss, Temperature
from hedgerow.algorithms.objectives.distillation_loss import between


class Consistency(AuxiliaryLoss):
    """S is the divergence between the predictions on two versions of a sample."""

    temperature: Temperature = 3.5
    detach_target: bool = Field(False, description="stop the gradient through the target, the predictions on x_a")

    def other(self, own: Any, batch: Batch) -> Tensor:
        """Returns the other version of the samples."""
        raise NotImplementedError

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Any) -> tuple[Tensor, Tensor]:
        logits = task.logits(w, batch.x)
        return logits, self.disagreement(own, task, w, logits, batch)

    def disagreement(self, own: Any, task: Task, w: Params, logits: Tensor, batch: Batch) -> Tensor:
        """Divergence; 0-d. logits: of the batch's own samples."""
        target = logits.detach() if own.detach_target else logits
        return between(target, task.logits(w, self.other(own, batch)), batch, own.temperature)


class Robustness(Consistency):
    """Consistency between two augmentations of a sample."""

    def incompatibility(self, task: Task) -> str | None:
        if task.augment is None:
            return f"objective: {self.kind} compares two augmentations of a sample; give `task.augment`"
        return super().incompatibility(task)

    def other(self, own: Any, batch: Batch) -> Tensor:
        assert batch.view is not None
        return batch.view(1)


class Stability(Consistency):
    """Consistency between a sample and the same sample with Gaussian noise."""

    noise: float = Field(0.1, gt=0, description="standard deviation of the noise; that of normalised data is about 1")

    def other(self, own: Any, batch: Batch) -> Tensor:
        assert batch.keys is not None
        assert batch.rows is not None
        return batch.x + own.noise * normal(batch.keys[1], batch.rows, batch.x.shape)
