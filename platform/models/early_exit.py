"""FedHeN's networks: a residual network whose first stages, with their own exit, form the simple network."""

from functools import partial
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.models.model import Depth, StagedModel, Width
from hedgerow.platform.models.preact_resnet import Block

Exits = Literal["late", "early", "both"]


class ExitResNet(StagedModel):
    """FedHeN's pre-activation ResNet with GroupNorm; its first stages have their own exit behind mix pooling.

    By default, it has 11,171,146 parameters for 10 classes without that exit. The simple network has 674,880 of them
    and 1,291 in its exit. Other lists give smaller networks. The paper does not state the groups and the size of the
    pooled image.
    """

    channels: list[Width] = Field([64, 128, 256, 512], min_length=2, description="channels of each stage")
    blocks: list[Depth] = Field([2, 2, 2, 2], min_length=2, description="number of blocks of each stage")
    exit_after: int = Field(2, ge=1, description="number of stages of the simple network")
    groups: int = Field(2, ge=1, description="number of groups of each GroupNorm; must divide all channels")

    rules = (
        Rule(
            lambda model: model.exit_after >= len(model.channels) and len(model.channels),
            "`exit_after` must be less than the number of stages, {found}; lower it",
        ),
        Rule(
            lambda model: any(width % model.groups for width in model.channels),
            "`groups`: {groups} does not divide all of `channels`; choose 1 or another divisor",
        ),
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return EarlyExit(shape[0], classes, self.channels, self.blocks, self.exit_after, self.groups)


class EarlyExit(nn.Module):
    """PreActResNet-18 with GroupNorm, or other depths with other lists. After the first `exit_after` stages, it has an
    exit of mix pooling and a linear layer. (batch, C, H, W) -> (batch, classes).

    exits: network whose logits are returned: the complex one ("late"), the simple one ("early"), or a pair of both.
    early: parameters of the simple network, M in the paper. early_alone: those of them that the complex network does
    not use.
    """

    def __init__(self, inputs: int, classes: int, channels: list[int], blocks: list[int], exit_after: int, groups: int):
        super().__init__()
        norm = partial(nn.GroupNorm, groups)
        self.stem = nn.Conv2d(inputs, channels[0], 3, padding=1, bias=False)
        stages, width = [], channels[0]
        for stage, (outputs, number) in enumerate(zip(channels, blocks, strict=True)):
            strides = [2 if stage and not position else 1 for position in range(number)]
            widths = [width, *[outputs] * (number - 1)]
            stages.append([Block(w, outputs, stride, norm) for w, stride in zip(widths, strides, strict=True)])
            width = outputs
        self.first = nn.Sequential(*(block for stage in stages[:exit_after] for block in stage))
        self.rest = nn.Sequential(*(block for stage in stages[exit_after:] for block in stage))
        self.mix = nn.Parameter(torch.zeros(()))
        self.exit, self.head = nn.Linear(channels[exit_after - 1], classes), nn.Linear(width, classes)
        late = ("rest.", "head.")
        self.early = frozenset(name for name, _ in self.named_parameters() if not name.startswith(late))
        self.early_alone = frozenset(name for name in self.early if name.startswith(("mix", "exit.")))

    def forward(self, x: torch.Tensor, exits: Exits = "late") -> Any:
        x = self.first(self.stem(x))
        if exits == "late":
            return self._late(x)
        # Mix pooling: a learned convex combination of max pooling and mean pooling.
        share = torch.sigmoid(self.mix)
        early = self.exit(share * x.amax((2, 3)) + (1 - share) * x.mean((2, 3)))
        return early if exits == "early" else (early, self._late(x))

    def _late(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rest(x).mean((2, 3)))
