"""Synthetic samples (experimental; thesis, 7.1): cross-entropy of features drawn from one Gaussian per class.

A client fits the Gaussians to the features of its own samples at the received model, see
`algorithms/objectives/synthetic_samples.py`.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task
from hedgerow.algorithms.nn.features import head
from hedgerow.algorithms.objectives.auxiliary import AuxiliaryLoss, one_pass
from hedgerow.algorithms.objectives.synthetic_samples import MOST, Gaussians, nearness, synthetic_loss

REAL = "real"
"""Stream with the samples to which the Gaussians are fitted."""


class Fitted(NamedTuple):
    """generator: distribution of the synthetic samples. received: model whose features the generator was fitted to."""

    generator: Gaussians
    received: Params


class SyntheticFeatures(AuxiliaryLoss):
    """Experimental: features drawn from each class's Gaussian are additional samples for the last layer."""

    calls_logits = False

    ratio: float = Field(1.0, gt=0, le=MOST, description="synthetic samples per real sample")
    duplicate: float = Field(
        0.5,
        gt=0,
        description="a synthetic sample counts as a duplicate if its distance to the nearest real sample is below this "
        "fraction of the mean distance between nearest real samples",
    )

    def incompatibility(self, task: Task) -> str | None:
        if head(task.module) is None:
            return (
                "objective: synthetic needs a model that is a torch.nn.Sequential and ends in a linear layer; choose "
                "one such as mlp, cnn or preact_resnet"
            )
        return super().incompatibility(task)

    def centralized_incompatibility(self, hyper: Any) -> str | None:
        if getattr(hyper, "starts", 1) > 1:
            return "algorithm.starts: synthetic samples are made for one model; set it to 1"
        return super().centralized_incompatibility(hyper)

    def batches(self, specs: Mapping[str, BatchSpec]) -> dict[str, BatchSpec]:
        streams = super().batches(specs)
        return {**streams, REAL: one_pass(streams["train"])}

    def prepare(self, task: Task, hp: Any, down: Tree, state: Tree, data: ClientData) -> Fitted:
        return Fitted(Gaussians.fit(task, down["w"], data.batches(REAL)), down["w"])

    def terms(self, own: Any, task: Task, w: Params, batch: Batch, prepared: Fitted) -> tuple[Tensor, Tensor]:
        return task.logits(w, batch.x), synthetic_loss(task, w, batch, prepared.generator, own.ratio)

    def end(
        self, task: Task, hp: Any, w: Params, state: Tree, context: Fitted, data: ClientData
    ) -> tuple[Tree, dict[str, Tensor]]:
        state, metrics = super().end(task, hp, w, state, context, data)
        real, duplicate = data.batches(REAL), hp.objective.duplicate
        return state, metrics | nearness(task, context.received, real, context.generator, duplicate)
