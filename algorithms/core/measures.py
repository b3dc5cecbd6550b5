"""Losses and metrics: functions of (outputs, targets, mask), reduced over samples."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

Targets = Literal["classes", "labels", "numbers", "tokens"]
"""Kind of the targets of a data set. classes: a class per sample, int (n,); labels: several labels per sample that are
0 or 1, int (n, K); numbers: one or several numbers per sample, float (n,) or (n, K); tokens: a token per position, int
(n, L)."""

Mode = Literal["min", "max"]

Samples = tuple[np.ndarray, np.ndarray]
"""Outputs and targets of all samples of a split."""

RESERVED = ("loss", "correct", "samples")
"""Names that a metric cannot have, because the results of a client step use them."""


@dataclass(frozen=True)
class ScoreFunction:
    """A loss or a metric: a function (outputs, targets, mask) of a mini-batch.

    outputs: of the model, (samples, ...). targets: as the data set has them. mask: (samples,), 1 for real samples and 0
    for padding. The function returns one value per sample, (samples,), and the mean over all real samples is
    taken; or a pair (sum, count) of 0-d tensors without padding, and the sums over all batches, clients and shards
    are divided. It runs for one client or, under `torch.func.vmap`, for several.

    targets: kinds of targets that it takes; empty: any. mode: whether a metric is to be minimised or maximised; None:
    unknown. finish: maps the mean to the value that is reported; None: the mean itself. fused: mean over a mini-batch
    without padding, where torch has a faster function. counts_samples: its count is the number of samples, so that
    results do not contain it. sees_all: whether it is a metric that is no mean over samples: a function (outputs,
    targets) of all samples of a split at once, which returns the value.
    """

    function: Callable[..., Any]
    targets: tuple[Targets, ...] = ()
    mode: Mode | None = None
    finish: Callable[[float], float] | None = None
    fused: Callable[[Tensor, Tensor], Tensor] | None = None
    counts_samples: bool = False
    sees_all: bool = False

    @property
    def arguments(self) -> int:
        """Number of arguments that the function takes."""
        return 2 if self.sees_all else 3

    def of_all(self, outputs: np.ndarray, targets: np.ndarray) -> float:
        """Returns the value of a metric of all samples at once; NaN if there are none, or if the model has diverged."""
        if not len(targets) or not np.isfinite(outputs).all():
            return math.nan
        given = torch.from_numpy(outputs), torch.from_numpy(targets)
        return self.finished(float(self.function(_aligned(*given), given[1])))

    def sums(self, outputs: Tensor, targets: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the sum over the real samples, and the count to divide it by; 0-d."""
        result = self.function(_aligned(outputs, targets), targets, mask)
        if isinstance(result, tuple):
            total, count = result
            return total, count
        return (result * mask).sum(), mask.sum()

    def mean(self, outputs: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
        """Returns the mean over a mini-batch, 0-d; 0 if there are no real samples. mask: None if all are real."""
        if mask is None and self.fused is not None:
            return self.fused(outputs, targets)
        if mask is None:
            mask = torch.ones(len(targets), device=outputs.device, dtype=outputs.dtype)
        elif self.counts_samples:
            return (self.function(outputs, targets, mask) * mask).sum() / mask.sum().clamp(min=1.0)
        total, count = self.sums(outputs, targets, mask)
        return total / torch.where(count > 0, count, torch.ones_like(count))

    def value(self, total: float, count: float) -> float:
        """Returns the reported value, given the sums over everything that is scored; NaN if the count is 0."""
        return self.finished(total / count) if count else math.nan

    def finished(self, mean: float) -> float:
        """Returns the reported value of a mean; infinity where it is too large for a float."""
        try:
            return self.finish(mean) if self.finish else mean
        except OverflowError:
            return math.inf


def _aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs (samples, 1) for one number per sample as (samples,): a difference would broadcast to a matrix."""
    if targets.is_floating_point() and outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        return outputs.squeeze(-1)
    return outputs


Decorator = Callable[[Callable[..., Any]], ScoreFunction]


def loss(*targets: Targets) -> Decorator:
    """Decorator of a loss function: declares the kinds of targets that it takes."""
    return lambda function: ScoreFunction(function, targets, "min")


def metric(mode: Mode, *targets: Targets, finish: Callable[[float], float] | None = None) -> Decorator:
    """Decorator of a metric: declares whether it is to be minimised or maximised, and the targets that it takes.

    finish: maps the mean over all samples to the value that is reported, such as `math.exp`.
    """
    return lambda function: ScoreFunction(function, targets, mode, finish, sees_all=sees_all(function))


def sees_all(function: Callable[..., Any]) -> bool:
    """Whether a function takes (outputs, targets) of all samples at once, without a mask."""
    try:
        signature = inspect.signature(function)
        signature.bind(None, None)
    except (TypeError, ValueError):
        return False
    return not any(one.name == "mask" or one.kind is one.VAR_POSITIONAL for one in signature.parameters.values())


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of each sample: logits (..., classes), y (...) -> (...).

    F.cross_entropy falls back to Python under vmap, which imports torch's compiler and costs seconds in every process.
    """
    return -logits.log_softmax(-1).gather(-1, y[..., None])[..., 0]


def _cross_entropy(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of one class per sample."""
    return cross_entropies(outputs, targets)


def _accuracy(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Share of the samples whose largest logit is that of their class."""
    return (outputs.argmax(-1) == targets).to(outputs.dtype)


cross_entropy = ScoreFunction(_cross_entropy, ("classes",), "min", fused=F.cross_entropy, counts_samples=True)
accuracy = ScoreFunction(_accuracy, ("classes",), "max", counts_samples=True)


@dataclass(frozen=True)
class Scoring:
    """The loss of a task and its metrics by name; the first one is the main metric."""

    loss: ScoreFunction = cross_entropy
    metrics: Mapping[str, ScoreFunction] = field(default_factory=lambda: {"accuracy": accuracy})

    @cached_property
    def measures(self) -> dict[str, ScoreFunction]:
        """The metrics and the loss, by name."""
        return {**self.metrics, "loss": self.loss}

    @cached_property
    def summed(self) -> dict[str, ScoreFunction]:
        """The measures that are sums over samples, by name."""
        return {name: measure for name, measure in self.measures.items() if not measure.sees_all}

    @property
    def sees_all(self) -> bool:
        """Whether a metric needs all outputs of a split at once."""
        return len(self.summed) < len(self.measures)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the entries of `sums`: "loss", metrics (the sum of the accuracy is "correct"), "samples", counts."""
        counts = [_count(name) for name, measure in self.summed.items() if not measure.counts_samples]
        return ("loss", *(_total(name) for name in self.summed if name != "loss"), "samples", *counts)

    def sums(self, outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """Returns the sums and counts of a mini-batch, (names,)."""
        pairs = {name: measure.sums(outputs, targets, mask) for name, measure in self.summed.items()}
        counts = [pairs[name][1] for name, measure in self.summed.items() if not measure.counts_samples]
        totals = [pairs[name][0] for name in dict.fromkeys(("loss", *self.summed))]
        return torch.stack([*totals, mask.sum(), *counts])

    def values(
        self, results: Mapping[str, Any], samples_of: str = "test", samples: Samples | None = None
    ) -> dict[str, float]:
        """Returns the reported values of all measures. results: name -> array of sums, one entry per client or shard.

        samples_of: prefix of their names. samples: outputs and targets, for the metrics that need all of them.
        """
        return {f"{samples_of}_{name}": self._value(name, results, samples) for name in self.measures}

    def _value(self, name: str, results: Mapping[str, Any], samples: Samples | None) -> float:
        measure = self.measures[name]
        if measure.sees_all:
            assert samples is not None
            return measure.of_all(*samples)
        return measure.value(float(results[_total(name)].sum()), float(results[self.count(name)].sum()))

    def count(self, name: str) -> str:
        """Name of the count of a measure in results."""
        return "samples" if self.measures[name].counts_samples else _count(name)

    def per_client(self, results: Mapping[str, Any], name: str, samples: Samples | None = None) -> Any:
        """Values of a measure for each client that has samples to be scored on, as an array; those for which it is
        undefined are left out.

        samples: outputs and targets of all clients, one after the other.
        """
        if self.measures[name].sees_all:
            assert samples is not None
            if not len(samples[1]):
                return np.zeros(0)
            ends = np.cumsum(results["samples"][results["samples"] > 0]).astype(int)[:-1]
            parts = list(zip(*(np.split(array, ends) for array in samples), strict=True))
            values = [self.measures[name].of_all(*part) for part in parts]
            # A model that diverged has no value either, and counts.
            diverged = [not np.isfinite(outputs).all() for outputs, _ in parts]
            return np.array([one for one, bad in zip(values, diverged, strict=True) if bad or not math.isnan(one)])
        measure, totals, counts = self.measures[name], results[_total(name)], results[self.count(name)]
        values = (totals[counts > 0] / counts[counts > 0]).astype(float)
        return np.array([measure.finished(value) for value in values.tolist()])


def _total(name: str) -> str:
    return "correct" if name == "accuracy" else name


def _count(name: str) -> str:
    return f"{name}_count"
