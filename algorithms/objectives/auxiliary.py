"""Cross-entropy plus an auxiliary loss, which has a weight, or an upper bound and a multiplier per client.

    alpha CE(w; x_a, y) + (1 - alpha) S(w),  or CE(w; x_a, y) + lambda (S(w) - limit)

x_a and x_b are two draws of the task's augmentation of x. lambda is a client's dual variable: after each round in which
the client participates it moves by `dual_lr` times the excess of S over all samples of the client (dual ascent).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.objectives.objective import Loss, Objective

Temperature = Annotated[float, Field(gt=0, description="tau, divides the logits")]

ALL_SAMPLES = "side"
"""Stream with one pass over a client's samples; its name is part of the key that seeds its mini-batches."""


class AuxiliaryLoss(Objective):
    """Cross-entropy plus an auxiliary loss S, which subclasses define in `terms`."""

    needs_classes: ClassVar[bool] = True

    alternatives = (("alpha", "limit"),)

    alpha: float | None = Field(
        0.5,
        ge=0,
        le=1,
        description="weight of the cross-entropy; the auxiliary loss has weight 1 - alpha; null if `limit` is given",
    )
    limit: float | None = Field(
        None,
        ge=0,
        description="upper bound of each client's mean auxiliary loss, instead of `alpha`: its weight is a "
        "multiplier per client, which rises while the loss is above the bound",
    )
    dual_lr: float = Field(1.0, gt=0, description="learning rate of the multiplier, which is updated once per round")

    # ---- defined by subclasses ---------------------------------------------------------------------------------------

    def prepare(self, task: Task, hp: Any, down: Tree, state: Tree, data: ClientData) -> Any:
        """Returns the inputs of `terms` for this round, computed before the local steps."""
        return None

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Any) -> tuple[Tensor, Tensor]:
        """Returns the logits of a mini-batch, and S on it (0-d). own: values of this section in the current round."""
        raise NotImplementedError

    # ---- interface of an objective -----------------------------------------------------------------------------------

    def centralized_incompatibility(self, hyper: Any) -> str | None:
        if self.limit is not None:
            return f"objective.limit: {hyper.name} has no clients to keep multipliers; give `alpha`"
        return super().centralized_incompatibility(hyper)

    def batches(self, specs: Mapping[str, BatchSpec]) -> dict[str, BatchSpec]:
        """Requests two views of each sample and, with `limit`, an additional pass over the samples."""
        two_views = {name: replace(spec, views=2) for name, spec in specs.items()}
        once = {ALL_SAMPLES: one_pass(two_views["train"])} if self.limit is not None else {}
        return {**two_views, **once}

    def init_client(self, task: Task) -> Tree:
        return {} if self.limit is None else {"multiplier": torch.zeros(())}

    def begin(self, task: Task, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Loss, Any]:
        own, prepared = hp.objective, self.prepare(task, hp, down, state, data)
        first, second = (own.alpha, 1 - own.alpha) if own.limit is None else (1.0, state["multiplier"])

        def loss(w: Params, batch: Batch) -> Tensor:
            logits, auxiliary = self.terms(own, task, w, batch, prepared)
            return first * task.criterion(logits, batch) + second * auxiliary

        return loss, prepared

    def end(
        self, task: Task, hp: Any, w: Params, state: Tree, context: Any, data: ClientData
    ) -> tuple[Tree, dict[str, Tensor]]:
        own = hp.objective
        if own.limit is None:
            return state, {}
        excess = self._mean(own, task, w, data, context) - own.limit
        multiplier = (state["multiplier"] + own.dual_lr * excess).clamp(min=0.0)
        return {"multiplier": multiplier}, {"multiplier": multiplier, "side_loss": excess + own.limit}

    def _mean(self, own: Any, task: Task, w: Params, data: ClientData, prepared: Any) -> Tensor:
        """Mean of S over all samples of the client; 0-d."""
        total, samples = torch.zeros((), device=data.x.device), torch.zeros((), device=data.x.device)
        for batch in data.batches(ALL_SAMPLES):
            n = len(batch.y) if batch.mask is None else batch.mask.sum()
            total = total + n * self.terms(own, task, w, batch, prepared)[1]
            samples = samples + n
        return total / samples


def one_pass(spec: BatchSpec) -> BatchSpec:
    """Returns the same mini-batches in one pass over the samples."""
    return replace(spec, epochs=1, steps=None)
