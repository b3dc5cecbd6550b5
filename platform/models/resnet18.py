"""ResNet-18 with GroupNorm, adapted from torchvision's."""

from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet


def resnet18_gn(channels: int, classes: int, groups: int, small_images: bool) -> nn.Module:
    """torchvision's ResNet-18 for images with `channels`, each BatchNorm replaced by a GroupNorm of `groups`.

    small_images: the stem is a 3x3 convolution with stride 1 and no max-pool. (B, channels, H, W) -> (B, classes).
    """
    net = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=classes, norm_layer=partial(nn.GroupNorm, groups))
    if small_images:
        net.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
        net.maxpool = nn.Identity()  # type: ignore[assignment]
    else:
        net.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    # As torchvision initialises its convolutions, which it did before the stem was replaced.
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    return net
