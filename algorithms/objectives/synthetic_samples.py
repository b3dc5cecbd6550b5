"""Experimental: synthetic samples beside a client's own (thesis, 7.1, which names generators and no algorithm).

The cheapest generator alone: for each class a Gaussian of the features that the last layer is given.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.client_data import Batch
from hedgerow.algorithms.core.keyed_random import normal, uniform
from hedgerow.algorithms.core.task import Params, Task, cross_entropies, with_frozen
from hedgerow.algorithms.nn.features import embedded, head

MOST = 2
"""Synthetic samples that a real one stands for, at most."""

MEASURED = 500
"""Samples of a client that are compared with all of its own, at most."""


@dataclass(frozen=True)
class Gaussians:
    """means (classes, features); spread (features,): the deviation from them that all classes have in common."""

    means: Tensor
    spread: Tensor

    @classmethod
    def fit(cls, task: Task, w: Params, batches: Iterable[Batch]) -> Self:
        """Of the features of some samples; of classes that none has, no sample is drawn."""
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
        """Features (samples, features) of some labels; rows: what tells the samples apart."""
        noise = normal(key, rows, torch.Size((len(labels), len(self.spread))))
        return self.means[labels] + self.spread * noise


def synthetic_loss(task: Task, w: Params, batch: Batch, generator: Gaussians, ratio: Tensor | float) -> Tensor:
    """The cross-entropy of synthetic samples, `ratio` for each real one, with labels as those have; 0-d."""
    assert batch.keys is not None
    assert batch.rows is not None
    last, params = len(task.module) - 1, with_frozen(task.module, w)  # type: ignore[arg-type]
    real = torch.ones_like(batch.y, dtype=generator.means.dtype) if batch.mask is None else batch.mask
    total, samples = real.new_zeros(()), real.new_zeros(())
    for copy in range(MOST):
        rows = batch.rows * MOST + copy
        features = generator.sample(batch.y, batch.keys[1], rows)
        losses = cross_entropies(F.linear(features, params[f"{last}.weight"], params[f"{last}.bias"]), batch.y)
        there = real * (copy + uniform(batch.keys[1], rows, 2) < ratio)
        total, samples = total + (there * losses).sum(), samples + there.sum()
    return total / samples.clamp(min=1.0)


def nearness(
    task: Task, w: Params, batches: Iterable[Batch], generator: Gaussians, duplicate: Tensor | float
) -> dict[str, Tensor]:
    """How near synthetic samples come to the real ones that they are made of, one for each; by features.

    synthetic_distance: their mean distance to the nearest real one, relative to that from a real one to the nearest
    other, which stands for what was held out; 1: no nearer than strangers are, 0: copies, or nothing to compare with.
    synthetic_duplicates: the share of them that is nearer than `duplicate` of the latter distance.
    """
    features, drawn, rows, masks = [], [], [], []
    for batch in batches:
        assert batch.keys is not None
        assert batch.rows is not None
        features.append(embedded(task.module, w, batch.x, "features"))
        drawn.append(generator.sample(batch.y, batch.keys[1], batch.rows * MOST))
        rows.append(batch.rows)
        masks.append(torch.ones_like(features[-1][:, 0]) if batch.mask is None else batch.mask)
    real, row, there = (torch.cat(parts) for parts in (features, rows, masks))
    some, never = there[:MEASURED] > 0, real.new_tensor(torch.inf)
    apart = torch.where(there > 0, torch.cdist(torch.cat([real[:MEASURED], torch.cat(drawn)[:MEASURED]]), real), never)
    among, of_drawn = apart[: len(some)], apart[len(some) :].amin(-1)
    others = torch.where(row[:MEASURED, None] == row, never, among).amin(-1)
    usual = _mean(others, some & others.isfinite())
    nearest = _mean(of_drawn, some)
    return {
        "synthetic_distance": torch.where(usual > 0, nearest / usual.clamp(min=1e-12), 0.0),
        "synthetic_duplicates": _mean((of_drawn < duplicate * usual).to(real), some),
    }


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    """Over those that are counted; 0-d, and 0 where none is."""
    return torch.where(counted, values, 0.0).sum() / counted.sum().clamp(min=1)
