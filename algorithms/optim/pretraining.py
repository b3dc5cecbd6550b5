"""Training of a teacher before the first round."""

from typing import ClassVar, Self

from pydantic import Field

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.optim.local_sgd import cosine


class TeacherTraining(Settings):
    """Settings for training a teacher: by SGD on the cross-entropy, on all training samples in one place."""

    epochs: int = Field(20, ge=1, description="passes over the training samples")
    batch_size: int | None = Field(50, ge=1, description="samples per step; null: all samples")
    lr: float = Field(0.1, gt=0, description="learning rate in the first pass")
    lr_cosine: int | None = Field(
        None,
        ge=1,
        description="last pass of a cosine schedule, with a learning rate near 0 from then on; null: no schedule",
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="heavy-ball momentum")
    weight_decay: float = Field(5e-4, ge=0, description="L2 penalty")

    clip_norm: ClassVar[None] = None

    def at(self, epoch: int) -> Self:
        """Returns the settings in effect in a pass, counted from 1."""
        if self.lr_cosine is None:
            return self
        return self.model_copy(update={"lr": self.lr * cosine(epoch, self.lr_cosine)})
