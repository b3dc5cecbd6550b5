"""ResNet-18 with GroupNorm, adapted from torchvision's."""

from functools import partial
from typing import ClassVar

from pydantic import Field
from torch import nn

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.models.model import Model


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
        from torchvision.models.resnet import BasicBlock, ResNet

        net = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=classes, norm_layer=partial(nn.GroupNorm, self.groups))
        if self.small_images:
            net.conv1 = nn.Conv2d(shape[0], 64, 3, padding=1, bias=False)
            net.maxpool = nn.Identity()  # type: ignore[assignment]
        else:
            net.conv1 = nn.Conv2d(shape[0], 64, 7, stride=2, padding=3, bias=False)
        # The new stem needs the initialisation that torchvision gave to the stem that it replaces.
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        return net
