"""Networks of torchvision or after them; most return the outputs of their stages, for distillation methods that match
them (thesis, chapter 6).
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.hyperparameters import Rule
from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.models.model import Depth, Model, StagedModel, Width

Norm = Callable[[int], nn.Module]


class ResNet(StagedModel):
    """ResNet of basic blocks with static batch norm or GroupNorm: DiSK's ResNets, and its WRNs with other lists.

    By default ResNet-10-xxs: 13,020 parameters for 100 classes. ResNet-34, 21,328,292: channels [64, 128, 256, 512] and
    blocks [3, 4, 6, 3]. ImageNet's ResNet-18, 11,689,512 for 1000 classes: with `large_images: true`. ResNet-50,
    25,557,032: also with `bottleneck: true` and ResNet-34's lists.
    """

    channels: list[Width] = Field([8, 8, 16, 16], min_length=1, description="channels of each stage")
    blocks: list[Depth] = Field([1, 1, 1, 1], min_length=1, description="number of blocks of each stage")
    stem: int | None = Field(None, ge=1, description="channels of the stem; null: same as the first stage")
    bottleneck: bool = Field(
        False, description="use blocks of three convolutions, the last with four times the channels"
    )
    large_images: bool = Field(False, description="use a 7x7 stem with stride 2 and a max-pool, as for 224x224 images")
    groups: int | None = Field(
        None,
        ge=1,
        description="number of groups of each GroupNorm, which can be batched over clients; null: static batch norm",
    )

    rules = (
        Rule(
            lambda model: (
                model.groups and any(width % model.groups for width in [*model.channels, model.stem or model.groups])
            ),
            "`groups`: {groups} does not divide all of `channels` and `stem`; choose 1",
        ),
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        norm = partial(nn.GroupNorm, self.groups) if self.groups else StaticBatchNorm2d
        stem = self.stem or self.channels[0]
        options = {"bottleneck": self.bottleneck, "large_images": self.large_images}
        return resnet(shape[0], classes, stem, self.channels, self.blocks, norm, **options)


class ResNet18(Model):
    """torchvision's ResNet-18 with GroupNorm in place of BatchNorm, about 11.2 million parameters.

    As in Hsieh et al., "The Non-IID Data Quagmire of Decentralized Machine Learning", 2020.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)

    groups: int = Field(2, ge=1, description="number of groups of each GroupNorm; must divide 64")
    small_images: bool = Field(
        True, description="use a 3x3 stem with stride 1 and no max-pool, as usual for 32x32 images"
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Builds torchvision's ResNet-18 with each BatchNorm replaced. (B, channels, H, W) -> (B, classes)."""
        if 64 % self.groups:
            raise UserError(f"task.model.groups: {self.groups} does not divide 64 channels; choose 1, 2, 4, ... 64")
        # Imported here: it takes seconds, which only runs with this model should pay.
        from torchvision.models import resnet18

        net = resnet18(num_classes=classes, norm_layer=partial(nn.GroupNorm, self.groups))
        if self.small_images:
            net.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
            net.maxpool = nn.Identity()  # type: ignore[assignment]
        else:
            net.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        # The new stem needs the initialisation that torchvision gave to the stem that it replaces.
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        return net


class ShuffleNetV2(Model):
    """torchvision's ShuffleNetV2 x1.0 with static batch norm, a 1x1 stem and no pool after it (1.36 million
    parameters)."""

    takes: ClassVar[tuple[str, ...]] = ("images",)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision.models import shufflenet_v2_x1_0

        net = shufflenet_v2_x1_0(num_classes=classes)
        stem = nn.Sequential(nn.Conv2d(shape[0], 24, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU())
        stages: list[nn.Module] = [nn.Sequential(stem, net.stage2), net.stage3, nn.Sequential(net.stage4, net.conv5)]
        return _static(Staged(stages, 1024, classes))


class MobileNetV2(Model):
    """torchvision's MobileNetV2 with static batch norm, for small images (2.35 million parameters)."""

    takes: ClassVar[tuple[str, ...]] = ("images",)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torchvision import models

        # Expansion, channels, blocks, stride of the first. The second stage keeps the size of the images.
        settings = [
            [1, 16, 1, 1], [6, 24, 2, 1], [6, 32, 3, 2], [6, 64, 4, 2], [6, 96, 3, 1], [6, 160, 3, 2], [6, 320, 1, 1],
        ]  # fmt: skip
        layers = list(models.MobileNetV2(classes, inverted_residual_setting=settings, dropout=0.0).features)
        if shape[0] != 3:
            layers[0][0] = nn.Conv2d(shape[0], 32, 3, 2, padding=1, bias=False)
        # A stage ends where the size changes.
        ends = [0, 4, 7, 14, len(layers)]
        net = Staged([nn.Sequential(*layers[a:b]) for a, b in pairwise(ends)], 1280, classes)
        # Only the last layer ends in a ReLU; blocks do not.
        net.rectified = False
        return _static(net)


class VisionTransformer(Model):
    """torchvision's vision transformer, by default ViT-Tiny/16.

    ViT-Tiny/16 has 5,717,416 parameters for 224x224 images and 1000 classes; ViT-Large/16, with `layers: 24, heads: 16,
    width: 1024`, has 304,326,632.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)

    patch: int = Field(16, ge=1, description="side of a patch; must divide the side of the images, which are square")
    layers: Depth = Field(12, description="number of encoder layers")
    heads: int = Field(3, ge=1, description="number of attention heads; must divide `width`")
    width: int = Field(192, ge=1, description="dimension of a token; each layer has four times as many hidden units")

    rules = (
        Rule(
            lambda model: model.width % model.heads, "`heads`: {heads} does not divide `width: {width}`; choose another"
        ),
    )

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if shape[1] != shape[2] or shape[1] % self.patch:
            raise UserError(
                f"task.model: vit needs square images whose side is a multiple of {self.patch}, but these have "
                f"{shape[1]}x{shape[2]} pixels; choose another `patch`"
            )
        return ViT(shape, classes, self.patch, self.layers, self.heads, self.width)


class Staged(nn.Module):
    """Stages in sequence, the mean over the image, and a linear layer. (batch, C, H, W) -> (batch, classes).

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
    """Basic block (He et al., "Deep Residual Learning", 2015): two 3x3 convolutions, and a 1x1 shortcut where the shape
    changes."""

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
    """Bottleneck block: a 1x1, a 3x3 and a 1x1 convolution, the last with four times the channels."""

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
"""Ratio of a bottleneck's output channels to its inner channels."""


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
    """A stem and stages of blocks; all but the first stage begin with stride 2; the stem is part of the first stage.

    The stem is a 3x3 convolution; for large images, it is a 7x7 convolution with stride 2 and a max-pool with stride 2.
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


class ViT(nn.Module):
    """torchvision's vision transformer; its features are those of the class token. (batch, C, H, H) -> (batch,
    classes).

    It returns no stage outputs, since its stages are sequences.
    """

    shows_inside = True

    def __init__(self, shape: tuple[int, ...], classes: int, patch: int, layers: int, heads: int, width: int):
        super().__init__()
        from torchvision import models

        self.body = models.VisionTransformer(shape[-1], patch, layers, heads, width, MLP_RATIO * width)
        if shape[0] != 3:
            self.body.conv_proj = nn.Conv2d(shape[0], width, patch, patch)
        self.body.heads = nn.Identity()  # type: ignore[assignment]
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, inside: bool = False) -> Any:
        features = self.body(x)
        logits = self.head(features)
        return ([], features, logits) if inside else logits


MLP_RATIO = 4
"""Ratio of a transformer layer's hidden units to its width."""


def _static(net: Staged) -> Staged:
    """Replaces every batch norm of a network by static batch norm."""
    for module in list(net.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(module, name, StaticBatchNorm2d(child.num_features))
    return net
