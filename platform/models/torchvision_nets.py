"""Networks that show their stages: what methods of distillation match (thesis, chapter 6)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d

Norm = Callable[[int], nn.Module]


class Staged(nn.Module):
    """Stages one after the other, the mean over the image, and a linear layer. (batch, C, H, W) -> (batch, classes).

    rectified: whether every stage ends in a ReLU.
    """

    shows_inside = True
    rectified = True

    def __init__(self, stages: list[nn.Module], width: int, classes: int):
        super().__init__()
        self.stages, self.head = nn.ModuleList(stages), nn.Linear(width, classes)

    def forward(self, x: Tensor, inside: bool = False) -> Any:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        features = x.mean((2, 3))
        logits = self.head(features)
        return (maps, features, logits) if inside else logits


class BasicBlock(nn.Module):
    """He et al., "Deep Residual Learning", 2015: two 3x3 convolutions, and a 1x1 shortcut where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.n1, self.n2 = norm(outputs), norm(outputs)
        changes = stride > 1 or inputs != outputs
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
        self.shortcut = shortcut if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.n2(self.conv2(F.relu(self.n1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class Bottleneck(nn.Module):
    """The same of a 1x1, a 3x3 and a 1x1 convolution, the last with four times the channels."""

    def __init__(self, inputs: int, inner: int, stride: int, norm: Norm):
        super().__init__()
        outputs = WIDER * inner
        self.conv1, self.n1 = nn.Conv2d(inputs, inner, 1, bias=False), norm(inner)
        self.conv2, self.n2 = nn.Conv2d(inner, inner, 3, stride, padding=1, bias=False), norm(inner)
        self.conv3, self.n3 = nn.Conv2d(inner, outputs, 1, bias=False), norm(outputs)
        changes = stride > 1 or inputs != outputs
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
        self.shortcut = shortcut if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.n2(self.conv2(F.relu(self.n1(self.conv1(x))))))
        return F.relu(self.n3(self.conv3(y)) + self.shortcut(x))


WIDER = 4
"""The channels that a bottleneck puts out are so many times those inside."""


def resnet(
    inputs: int,
    classes: int,
    stem: int,
    channels: list[int],
    blocks: list[int],
    norm: Norm,
    bottleneck: bool = False,
    large_images: bool = False,
) -> Staged:
    """A stem, then stages of blocks, of which all but the first begin with stride 2; the stem is the first's.

    The stem is a 3x3 convolution; of large images one of 7x7 with stride 2, and a max-pool with stride 2.
    """
    kernel, stride = (7, 2) if large_images else (3, 1)
    conv = nn.Conv2d(inputs, stem, kernel, stride, padding=kernel // 2, bias=False)
    before: list[nn.Module] = [conv, norm(stem), nn.ReLU()]
    if large_images:
        before.append(nn.MaxPool2d(3, 2, padding=1))
    block, wider = (Bottleneck, WIDER) if bottleneck else (BasicBlock, 1)
    stages: list[nn.Module] = []
    width = stem
    for stage, (outputs, number) in enumerate(zip(channels, blocks, strict=True)):
        for position in range(number):
            before.append(block(width, outputs, 2 if stage and not position else 1, norm))
            width = wider * outputs
        stages.append(nn.Sequential(*before))
        before = []
    return Staged(stages, width, classes)


def shufflenet_v2(inputs: int, classes: int) -> Staged:
    """torchvision's ShuffleNetV2 of size 1 for small images: a 1x1 stem, and no pool behind it."""
    from torchvision.models import shufflenet_v2_x1_0

    net = shufflenet_v2_x1_0(num_classes=classes)
    stem = nn.Sequential(nn.Conv2d(inputs, 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
    stages: list[nn.Module] = [nn.Sequential(stem, net.stage2), net.stage3, nn.Sequential(net.stage4, net.conv5)]
    return _static(Staged(stages, 1024, classes))


def mobilenet_v2(inputs: int, classes: int) -> Staged:
    """torchvision's MobileNetV2 for small images, whose second stage keeps their size."""
    from torchvision.models import MobileNetV2

    # expansion, channels, blocks, stride of the first
    settings = [
        [1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1],
    ]  # fmt: skip
    layers = list(MobileNetV2(classes, inverted_residual_setting=settings, dropout=0.0).features)
    if inputs != 3:
        layers[0][0] = nn.Conv2d(inputs, 32, 3, 2, padding=1, bias=False)
    # Up to where the size changes.
    ends = [0, 4, 7, 14, len(layers)]
    net = Staged([nn.Sequential(*layers[a:b]) for a, b in pairwise(ends)], 1280, classes)
    # All blocks but the last layer end in a sum.
    net.rectified = False
    return _static(net)


class ViT(nn.Module):
    """torchvision's vision transformer, whose features are the class token's. (batch, C, H, H) -> (batch, classes).

    It shows no maps: its stages are sequences.
    """

    shows_inside = True
    no_vmap = "torch's kernel of attention has no batching rule: under vmap it falls back to a slow loop"

    def __init__(self, shape: tuple[int, ...], classes: int, patch: int, layers: int, heads: int, width: int):
        super().__init__()
        from torchvision.models import VisionTransformer

        self.body = VisionTransformer(shape[-1], patch, layers, heads, width, MLP_RATIO * width)
        if shape[0] != 3:
            self.body.conv_proj = nn.Conv2d(shape[0], width, patch, patch)
        self.body.heads = nn.Identity()  # type: ignore[assignment]
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, inside: bool = False) -> Any:
        features = self.body(x)
        logits = self.head(features)
        return ([], features, logits) if inside else logits


MLP_RATIO = 4
"""The hidden units of a transformer's layers, in widths."""


def _static(net: Staged) -> Staged:
    """The same with static batch norm."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, StaticBatchNorm2d(child.num_features))
    return net


def multiply_adds(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Of convolutions and linear layers, for one sample; what tables of models call MACs."""
    found = []

    def count(layer: Any, _: Any, out: Tensor) -> None:
        found.append(out[0].numel() * layer.weight[0].numel())

    handles = [m.register_forward_hook(count) for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        net(torch.zeros(2, *shape))
    for handle in handles:
        handle.remove()
    return sum(found)
