"""FedHeN's networks: a residual network whose first stages, with an exit of their own, are the simple one."""

from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from hedgerow.platform.models.preact_resnet import Block

Exits = Literal["late", "early", "both"]


class EarlyExit(nn.Module):
    """PreActResNet-18 with GroupNorm, other depths with other lists; behind `exit_after` stages an exit of mix pooling
    and a linear layer. (batch, C, H, W) -> (batch, classes).

    exits: whose logits are wanted, of the complex network ("late"), of the simple one, or of both, a pair.
    early: the parameters of the simple network, M of the paper. early_alone: those that the complex one does without.
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
        # Mix pooling: a learned convex combination of the largest and the mean.
        share = torch.sigmoid(self.mix)
        early = self.exit(share * x.amax((2, 3)) + (1 - share) * x.mean((2, 3)))
        return early if exits == "early" else (early, self._late(x))

    def _late(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rest(x).mean((2, 3)))
