"""Residual network for methods that train sub-models."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.nn.submodel import OUTPUTS, Axes
from hedgerow.platform.models.model import StagedModel
from hedgerow.platform.models.preact_resnet import Block


class StaticResNet(StagedModel):
    """HeteroFL's and FedSep's ResNet: pre-activation blocks with static batch norm, whose sub-models are exact.

    By default ResNet-18, with 11,164,362 parameters for 10 classes; other lists give smaller networks.
    """

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return StaticResNetModule(shape[0], classes, self.channels, self.blocks)


class StaticResNetModule(nn.Module):
    """3x3 stem, stages of blocks (each but the first halves the resolution), norm, global average, linear layer.

    (batch, C, H, W) -> (batch, classes). axes: all blocks of a stage write the same channels, those of the stage; the
    inner channels of each block are its own.
    """

    def __init__(self, inputs: int, classes: int, channels: list[int], blocks: list[int]):
        super().__init__()
        self.stem = nn.Conv2d(inputs, channels[0], 3, padding=1, bias=False)
        self.axes: dict[str, Axes] = {"stem.weight": ("stage0", "")}
        layers: list[Block] = []
        before, width = "stage0", channels[0]
        for stage, (outputs, number) in enumerate(zip(channels, blocks, strict=True)):
            for position in range(number):
                block = Block(width, outputs, 2 if stage and not position else 1, StaticBatchNorm2d)
                after = f"stage{stage}"
                self.axes |= _axes(block, f"blocks.{len(layers)}", before, after)
                layers.append(block)
                before, width = after, outputs
        self.blocks = nn.Sequential(*layers)
        self.norm, self.head = StaticBatchNorm2d(width), nn.Linear(width, classes)
        self.axes |= {"norm.weight": (before,), "norm.bias": (before,)}
        self.axes |= {"head.weight": (OUTPUTS, before), "head.bias": (OUTPUTS,)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean((2, 3)))


def _axes(block: Block, name: str, before: str, after: str) -> dict[str, Axes]:
    """Axes of a block's parameters. before, after: spaces of the channels that the block reads and writes, maybe the
    same."""
    inner = f"{name}.conv1"
    axes: dict[str, Axes] = {"n1": (before,), "conv1": (inner, before), "n2": (inner,), "conv2": (after, inner)}
    axes["shortcut"] = (after, before)
    return {f"{name}.{path}": axes[path.partition(".")[0]] for path, _ in block.named_parameters()}
