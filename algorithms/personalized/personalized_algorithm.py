"""Personalised federated learning (PFL thesis, chapter 3): clients are trained and scored through an adaptation."""

from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Literal

from pydantic import Field

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.optim.local_sgd import LocalSGD, Loss
from hedgerow.algorithms.personalized.adaptation import Adaptation, Adapting


class PersonalSGD(Adaptation, LocalSGD):
    """Hyperparameters of the local solver and of T_i, which derives a client's own model from the common one."""

    adapt_in: Literal["training", "inference"] = Field(
        "training",
        description="training: clients minimise the loss of the adapted model and are scored with it; inference: "
        "clients train an ordinary model, which is adapted only for evaluation",
    )
    batch_size: int | None = Field(
        50, ge=1, description="samples per step, and as many again for adaptation; null: the whole local data"
    )

    @property
    def learns_adapted(self) -> bool:
        return super().learns_adapted and self.adapt_in == "training"

    @property
    def batches(self) -> dict[str, BatchSpec]:
        """Mini-batches of one round of local training, each with samples to adapt on and others to learn from."""
        plain = super().batches
        if not self.learns_adapted or self.batch_size is None:
            return plain
        return {"train": replace(plain["train"], size=2 * self.batch_size)}


class Personal(Adapting):
    """Mixin that personalises an algorithm: f_i becomes f_i o T_i. It precedes the algorithm among a class's bases.

    The transmitted model is common to all clients. Each client is scored with T_i of all its training samples, on its
    held-out samples.
    """

    is_personal = True
    training_steps: ClassVar[tuple[str, ...]] = ()

    def objective(self, hp: Any) -> Loss:
        return self.task.loss if hp.adapt_in == "inference" else super().objective(hp)

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> Any:
        """Training step of the personalised algorithm, on f_i o T_i."""
        algorithm = copy(self)
        algorithm.task = self.task.with_loss(self.objective(hp))
        return super(Personal, algorithm).train(hp, down, state, data)  # type: ignore[misc]
