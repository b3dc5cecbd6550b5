"""Experimental: synthetic samples in addition to a client's own (thesis, 7.1, which names generators and no algorithm).

Only the cheapest generator is implemented: one Gaussian per class, of the inputs of the last layer. A client fits it to
the features of its own samples at the received model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.keyed_random import normal, uniform
from hedgerow.algorithms.core.measures import cross_entropies
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.core.task import Params, Task, with_frozen
from hedgerow.algorithms.nn.features import embedded, head
from hedgerow.algorithms.objectives.auxiliary import AuxiliaryLoss, one_pass

MOST = 2
"""Maximum number of synthetic samples per real sample."""

MEASURED = 500
"""Maximum number of a client's samples that are compared with all of its samples."""

REAL = "real"
"""Stream with the samples to which the Gaussians are fitted."""


@dataclass(frozen=True)
class Gaussians:
    """means (classes, features); spread (features,): standard deviation from the means, shared by all classes."""

    means: Tensor
    spread: Tensor

    @classmethod
    def fit(cls, task: Task, w: Params, batches: Iterable[Batch]) -> Self:
        """Fits the Gaussians to features of samples; no samples are drawn from classes without samples."""
        last = head(task.module)
        assert last is not None
        like = with_frozen(task.module, w)[f"{len(task.module) - 1}.weight"]  # type: ignore[arg-type]
        counts, sums = like.new_zeros(last.out_features), torch.zeros_like(like)
        squares, total = like.new_zeros(last.in_features), like.new_zeros(())
        for batch in batches:
            features = embedded(task.module, w, batch.x, "features")
            real = torch.ones_like(features[:, 0]) if batch.mask is None else batch.mask
            members = F.one_hot(batch.y, last.out_features).to(features) * real[:, None]
            counts, sums = counts + members.sum(0), sums + members.T @ features
            squares, total = squares + (real[:, None] * features.square()).sum(0), total + real.sum()
        means = sums / counts.clamp(min=1.0)[:, None]
        within = squares - (counts[:, None] * means.square()).sum(0)
        return cls(means, (within / total.clamp(min=1.0)).clamp(min=0.0).sqrt())

    def sample(self, labels: Tensor, key: Tensor, rows: Tensor) -> Tensor:
        """Draws features (samples, features) for labels; rows identify the samples, and seed the draws."""
        noise = normal(key, rows, torch.Size((len(labels), len(self.spread))))
        return self.means[labels] + self.spread * noise


def synthetic_loss(task: Task, w: Params, batch: Batch, generator: Gaussians, ratio: Tensor | float) -> Tensor:
    """Cross-entropy of synthetic samples, `ratio` per real sample, with the labels of the real samples; 0-d."""
    assert batch.keys is not None
    assert batch.rows is not None
    last, params = len(task.module) - 1, with_frozen(task.module, w)  # type: ignore[arg-type]
    real = torch.ones_like(batch.y, dtype=generator.means.dtype) if batch.mask is None else batch.mask
    total, samples = real.new_zeros(()), real.new_zeros(())
    for copy in range(MOST):
        rows = batch.rows * MOST + copy
        features = generator.sample(batch.y, batch.keys[1], rows)
        losses = cross_entropies(F.linear(features, params[f"{last}.weight"], params[f"{last}.bias"]), batch.y)
        mask = real * (copy + uniform(batch.keys[1], rows, 2) < ratio)
        total, samples = total + (mask * losses).sum(), samples + mask.sum()
    return total / samples.clamp(min=1.0)


def nearness(
    task: Task, w: Params, batches: Iterable[Batch], generator: Gaussians, duplicate: Tensor | float
) -> dict[str, Tensor]:
    """Distances from synthetic samples, one per real sample, to the real ones they are generated from, in feature
    space.

    synthetic_distance: mean distance to the nearest real sample, relative to the mean distance from a real sample to
    its nearest other, which stands for held-out samples; 1: as far as independent samples, 0: copies, or nothing to
    compare with.
    synthetic_duplicates: share of synthetic samples that are closer than `duplicate` times the latter distance.
    """
    features, samples, rows, masks = [], [], [], []
    for batch in batches:
        assert batch.keys is not None
        assert batch.rows is not None
        features.append(embedded(task.module, w, batch.x, "features"))
        samples.append(generator.sample(batch.y, batch.keys[1], batch.rows * MOST))
        rows.append(batch.rows)
        masks.append(torch.ones_like(features[-1][:, 0]) if batch.mask is None else batch.mask)
    real, row, mask = (torch.cat(parts) for parts in (features, rows, masks))
    subset, infinity = mask[:MEASURED] > 0, real.new_tensor(torch.inf)
    distances = torch.where(
        mask > 0, torch.cdist(torch.cat([real[:MEASURED], torch.cat(samples)[:MEASURED]]), real), infinity
    )
    real_distances, sample_distances = distances[: len(subset)], distances[len(subset) :].amin(-1)
    neighbour_distances = torch.where(row[:MEASURED, None] == row, infinity, real_distances).amin(-1)
    reference = _mean(neighbour_distances, subset & neighbour_distances.isfinite())
    mean_distance = _mean(sample_distances, subset)
    return {
        "synthetic_distance": torch.where(reference > 0, mean_distance / reference.clamp(min=1e-12), 0.0),
        "synthetic_duplicates": _mean((sample_distances < duplicate * reference).to(real), subset),
    }


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Mean over the entries in the mask `counted`; 0-d, and 0 if there are none."""
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)


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
