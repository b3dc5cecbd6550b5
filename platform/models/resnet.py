"""ResNet-18 with GroupNorm, adapted from torchvision's."""

from functools import partial

from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet


def resnet18_gn(channels: int, classes: int, groups: int, small_images: bool) -> nn.Module:
    """torchvision's ResNet-18 for images with `channels`, each BatchNorm replaced by a GroupNorm of `groups`."""
    net = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=classes, norm_layer=partial(nn.GroupNorm, groups))
    if small_images:
        net.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        net.maxpool = nn.Identity()  # type: ignore[assignment]
    elif channels != 3:
        net.conv1 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
    for module in net.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # vmap has no in-place write of a batched value into an unbatched one
    return net
