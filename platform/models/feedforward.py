"""Feedforward networks: logistic regression, fully connected and small convolutional networks."""

from itertools import pairwise
from math import prod
from typing import ClassVar

from pydantic import Field
from torch import nn

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.models.model import Model, Width


class LogReg(Model):
    """Multinomial logistic regression (thesis, appendix A.1.1)."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *_fully_connected([prod(shape), classes]))


class MLP(Model):
    """Fully connected ReLU network on the flattened sample.

    The FedDyn experiments use hidden [200, 200] for MNIST (FedAvg's "2NN", 199210 parameters) and [100, 100] for the
    EMNIST letters (89610).
    """

    hidden: list[Width] = Field([200], description="units of the hidden layers")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *_fully_connected([prod(shape), *self.hidden, classes]))


class CNN(Model):
    """FedDyn's CIFAR network: conv 5x5, max-pool, conv 5x5, max-pool, two fully connected layers; no normalisation.

    Other lists give other depths: MOML's networks for 84x84 images have three convolutions and `fc: [400, 100]`.

    For the first fully connected layer, the thesis states 394 units in chapter 2 (815892 parameters on CIFAR-10) and
    384 in appendix A.1.2 (797962): `fc` decides. It does not state the padding.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)

    channels: list[Width] = Field([64, 64], min_length=1, description="channels of the convolutions")
    kernel: int = Field(5, ge=1, description="kernel size")
    padding: int = Field(0, ge=0, description="zero padding of the convolutions")
    fc: list[Width] = Field([394, 192], description="units of the fully connected layers")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = shape
        layers: list[nn.Module] = []
        for outputs in self.channels:
            layers += [nn.Conv2d(channels, outputs, self.kernel, padding=self.padding), nn.ReLU(), nn.MaxPool2d(2)]
            channels = outputs
            height, width = ((side + 2 * self.padding - self.kernel + 1) // 2 for side in (height, width))
            if min(height, width) < 1:
                raise UserError(
                    f"task.model: images of {shape[1]}x{shape[2]} are too small for {self.name} with kernel "
                    f"{self.kernel} and padding {self.padding}; choose mlp, or cnn with a smaller kernel or more "
                    "padding"
                )
        return nn.Sequential(*layers, nn.Flatten(), *_fully_connected([channels * height * width, *self.fc, classes]))


class SmallCNN(Model):
    """`cnn` for 8x8 images such as digits: conv 3x3x16, max-pool, conv 3x3x32, max-pool, linear (6090 parameters)."""

    takes: ClassVar[tuple[str, ...]] = ("images",)

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return CNN(name=self.name, channels=[16, 32], kernel=3, padding=1, fc=[]).build(shape, classes)


class Conv4(Model):
    """FedSep's network: three 3x3 convolutions with max-pools, one 2x2 convolution, and a linear layer.

    24234 parameters with 32 channels on MNIST, 97866 with 64 on CIFAR-10. The paper does not state pools, padding and
    head.
    """

    takes: ClassVar[tuple[str, ...]] = ("images",)

    channels: int = Field(32, ge=1, description="channels of each convolution")

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        height, width = (side // 8 - 1 for side in shape[1:])
        if min(height, width) < 1:
            raise UserError(
                f"task.model: images of {shape[1]}x{shape[2]} are too small for conv4, which needs at least 16x16; "
                "choose mlp"
            )
        channels = self.channels
        layers: list[nn.Module] = []
        for inputs in (shape[0], channels, channels):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        layers += [nn.Conv2d(channels, channels, 2), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(channels * height * width, classes))


def _fully_connected(widths: list[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return layers[:-1]
