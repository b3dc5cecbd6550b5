"""Models for DiSK's toy data sets (thesis, chapter 6)."""

from itertools import pairwise
from math import prod
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.models.model import Model, Width

SPAN = 9.0
"""Points of the toy data set are in [0, 9]."""

ENDS = {"A": (2.0, 3.0), "B": (2.0, 7.0), "C": (5.0, 7.0)}
"""Ends of the interval at each minimum, for one interval. The source identifies the minima by their accuracies, 67, 83
and 87 %; in expectation, B and C both have 83.3 %. C remains where [2, 3] is excused."""

NEAR = 0.5
"""Maximum distance of each end from that of a minimum."""


WITHIN = 0.0499
"""Maximum difference of an accuracy from that of a minimum."""


class IntervalsModel(Model):
    """DiSK's toy model on a line: intervals with soft ends, for `data: {name: intervals}`."""

    takes: ClassVar[tuple[str, ...]] = ("flat features",)

    number: int = Field(1, ge=1, description="number of intervals; one starts at random, several start evenly spread")
    steepness: float = Field(10.0, gt=0, description="steepness kappa of the ends; not stated in the source")
    floor: float = Field(1e-5, gt=0, lt=0.5, description="minimum probability of a class; not stated in the source")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if (shape, classes) != ((1,), 2):
            raise UserError(
                "task.model: intervals need samples on a line, in two classes; choose `task.data: {name: intervals}`"
            )
        return Intervals(self.number, self.steepness, self.floor)


class Intervals(nn.Module):
    """Classifies points inside intervals with soft ends as blue: f(x) = sum_i sigma(x - a_i) - sigma(x - b_i) with
    sigma(z) = 1 / (1 + exp(-steepness z)). (batch, 1) -> (batch, 2), logarithms of probabilities above `floor`.

    A point moves an end that is nearer than log(1 / floor) / steepness. If that is more than the gap of 1 between the
    toy's blue parts and other ends, the minima of the loss are no longer those of the accuracy: at 1e-5 it is 1.15, and
    they are within 0.2 of `ENDS`; at 1e-6 the end a of B moves from 2 to 2.4; at 1e-4 more students stay where no point
    moves them.

    One interval starts at random; several start evenly spread.
    """

    shows_inside = True

    def __init__(self, number: int, steepness: float, floor: float):
        super().__init__()
        self.steepness, self.floor = steepness, floor
        ends = torch.rand(2).sort().values if number == 1 else torch.arange(1, 2 * number + 1) / (2 * number + 1)
        self.ends = nn.Parameter(SPAN * ends)

    def forward(self, x: Tensor, inside: bool = False) -> Any:
        soft = torch.sigmoid(self.steepness * (x - self.ends))
        bumps = soft[:, 0::2] - soft[:, 1::2]
        blue = bumps.sum(-1).clamp(self.floor, 1 - self.floor)
        logits = torch.stack([1 - blue, blue], -1).log()
        return ([], bumps, logits) if inside else logits

    def minima(self, w: dict[str, Tensor], accuracy: Tensor) -> dict[str, Tensor]:
        """Masks (models,) of the models at each minimum, by its name. w: weights of models with one interval."""
        at = {name: ((w["ends"] - torch.tensor(ends)).abs() < NEAR).all(-1) for name, ends in ENDS.items()}
        return at | {"other": ~torch.stack(list(at.values())).any(0)}


class StaticMLPModel(Model):
    """Fully connected network for DiSK's toy in the plane, with static batch norm before each ReLU.

    Only the last layer has a bias.
    """

    hidden: list[Width] = Field([2], min_length=1, description="units of the hidden layers")
    levels: dict[str, float] = Field(
        {},
        description="test accuracies of known minima, by name; models that are trained side by side are counted by "
        "minimum",
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return StaticMLP([prod(shape), *self.hidden, classes], self.levels)


class StaticMLP(nn.Module):
    """Linear layers with static batch norm and ReLU between them. (batch, ...) -> (batch, classes).

    Only the last layer has a bias: before a norm, a bias would have no effect. The source's formulas show none. But
    without it, a sample at which all hidden units are 0 has equal logits, and no student with two hidden units can
    classify everything correctly, as the source's best students do: one of the six clusters in the plane is at such a
    point.

    levels: test accuracies of known minima, by name.
    """

    shows_inside = True

    def __init__(self, widths: list[int], levels: dict[str, float]):
        super().__init__()
        last = len(widths) - 2
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=i == last) for i, (a, b) in enumerate(pairwise(widths)))
        self.norms = nn.ModuleList(StaticBatchNorm2d(width) for width in widths[1:-1])
        if levels:
            self.levels, self.minima = levels, self._minima

    def forward(self, x: Tensor, inside: bool = False) -> Any:
        x = x.flatten(1)
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = F.relu(norm(layer(x)))
        logits = self.layers[-1](x)
        return ([], x, logits) if inside else logits

    def _minima(self, w: dict[str, Tensor], accuracy: Tensor) -> dict[str, Tensor]:
        """Masks (models,) of the models whose accuracy is nearly that of each minimum, by its name."""
        at = {name: (accuracy - level).abs() <= WITHIN for name, level in self.levels.items()}
        return at | {"other": ~torch.stack(list(at.values())).any(0)}
