"""Distributed SGD, also called FedSGD (McMahan et al., 2017, section 2; thesis, chapter 2)."""

from typing import Any

import torch
from pydantic import Field

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, leaves, scale, zeros_like
from hedgerow.algorithms.optim.descent import clip_factor
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.local_sgd import LearningRate


class FedSGD(Algorithm):
    """Each active client sends the gradient of its local loss at the server's model; the server steps along their
    mean, weighted by the clients' numbers of samples [McMahan2017].
    """

    class Hyper(LearningRate):
        batch_size: int | None = Field(
            None, ge=1, description="samples per forward pass; bounds memory, does not change the result"
        )
        weight_decay: float = Field(0.0, ge=0, description="L2 penalty, added to the gradient after clipping")
        clip_norm: float | None = Field(
            None, gt=0, description="largest norm of a client's gradient; null: no clipping"
        )

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        w = server["w"]
        result = yield Exchange(
            self.gradient,
            broadcast={"w": w},
            clients=cohort.clients,
            batches={"train": BatchSpec(size=self.hyper.batch_size, shuffle=False)},
            weights=self.weights(cohort),
        )
        return {"w": add(w, result.up["gradient"], -self.hyper.at(cohort.round).lr)}

    def gradient(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        total, loss, samples = (
            zeros_like(down["w"]),
            torch.zeros((), device=data.x.device),
            torch.zeros((), device=data.x.device),
        )
        for batch in data.batches("train"):
            n = float(len(batch.y)) if batch.mask is None else batch.mask.sum()
            g, value = gradient_and_value(self.task.loss)(down["w"], batch)
            total, loss, samples = add(total, g, n), loss + n * value, samples + n
        mean = scale(total, 1 / samples)
        if hp.clip_norm is not None:
            mean = scale(mean, clip_factor([g.norm() for g in leaves(mean)], hp.clip_norm))
        return {"gradient": add(mean, down["w"], hp.weight_decay)}, state, {"loss": loss / samples}
