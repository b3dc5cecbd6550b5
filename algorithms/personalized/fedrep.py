"""FedRep (Collins, Hassani, Mokhtari, Shakkottai, "Exploiting Shared Representations for Personalized Federated
Learning", 2021).
"""

from typing import Any, ClassVar

from pydantic import Field

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Weighting
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.optim.local_sgd import Loss, minimize
from hedgerow.algorithms.personalized.fedper import FedPer


class FedRep(FedPer):
    """FedPer whose clients train the head first, with the body fixed, and then the body, with the new head fixed
    [Collins2021, Alg. 1]. The mean of the bodies weights clients equally.
    """

    weighting: ClassVar[Weighting | None] = "uniform"

    class Hyper(FedPer.Hyper):
        alternatives = (("head_epochs", "head_steps"),)

        head_epochs: int | None = Field(
            10, ge=1, description="passes over the local data in which the personal parameters are trained"
        )
        head_steps: int | None = Field(None, ge=1, description="steps on them, instead of `head_epochs`")

        @property
        def batches(self) -> dict[str, BatchSpec]:
            """The mini-batches of one round, for the shared parameters and for the personal ones."""
            batches = super().batches
            if self.solver == "newton":
                return batches
            head = BatchSpec(size=self.batch_size, epochs=self.head_epochs or 1, steps=self.head_steps, views=1)
            return {**batches, "head": head}

    def fit(self, hp: Any, start: Params, data: ClientData) -> tuple[Params, dict[str, Any]]:
        shared, own, metrics = self.shared_part(start), self.own_part(start), {}
        if own:
            own, head_loss = minimize(self._given(shared), own, data, hp, batches=data.batches("head"))
            metrics["head_loss"] = head_loss
        shared, loss = minimize(self._given(own), shared, data, hp)
        return self.joined(shared, own), {"loss": loss, **metrics}

    def _given(self, fixed: Params) -> Loss:
        """Loss as a function of the other parameters."""

        def loss(w: Params, batch: Batch) -> Any:
            return self.task.loss({**fixed, **w}, batch)

        return loss
