"""Residual block that the residual networks of this package share, and networks made only of it."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

import torch
from pydantic import Field
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.platform.models.model import StagedModel


class PreActResNet(StagedModel):
    """Pre-activation ResNet with GroupNorm (thesis, 7.2), by default ResNet-18.

    ResNet-18 has 11.2 million parameters for 100 classes; ResNet-34, with `blocks: [3, 4, 6, 3]`, has 21.3 million.
    """

    groups: int = Field(32, ge=1, description="number of groups of each GroupNorm; must divide all channels")

    rules = (
        Rule(
            lambda model: any(width % model.groups for width in model.channels),
            "`groups`: {groups} does not divide all of `channels`; choose 1 or another divisor",
        ),
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return preact_resnet(shape[0], classes, self.channels, self.blocks, self.groups)


class Block(nn.Module):
    """Pre-activation residual block (He et al., "Identity Mappings in Deep Residual Networks", 2016).

    norm: function that builds the normalisation layer for a number of channels.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.n1, self.n2 = norm(inputs), norm(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if changes else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.n1(x))
        shortcut = x if self.shortcut is None else self.shortcut(y)
        return shortcut + self.conv2(F.relu(self.n2(self.conv1(y))))


class Stages(nn.Sequential):
    """Sequence of layers that can also return the outputs of its stages, features and logits. The last three layers are
    the mean over the image, a flatten and a linear layer.

    ends: positions of the last layer of each stage. Slices, such as all but the last layer, have no stages.
    """

    shows_inside = True
    ends: Collection[int] = ()

    def forward(self, x: torch.Tensor, inside: bool = False) -> Any:
        if not inside:
            return super().forward(x)
        maps = []
        for position, layer in enumerate(list(self)[:-1]):
            x = layer(x)
            if position in self.ends:
                maps.append(x)
        return maps, x, self[-1](x)


def preact_resnet(inputs: int, classes: int, channels: list[int], blocks: list[int], groups: int) -> Stages:
    """A 3x3 convolution, stages of blocks (all but the first begin with stride 2), the mean over the image and a linear
    layer; every normalisation is a GroupNorm. (batch, C, H, W) -> (batch, classes)."""
    norm, width = partial(nn.GroupNorm, groups), channels[0]
    layers: list[nn.Module] = [nn.Conv2d(inputs, width, 3, padding=1, bias=False)]
    ends = []
    for stage, (outputs, number) in enumerate(zip(channels, blocks, strict=True)):
        for position in range(number):
            layers.append(Block(width, outputs, 2 if stage and not position else 1, norm))
            width = outputs
        ends.append(len(layers) - 1)
    net = Stages(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))
    net.ends = ends
    return net
