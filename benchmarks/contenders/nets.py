"""The model of pfl-research's CIFAR-10 benchmark, which Hedgerow does not have built in."""

from torch import nn


class PflCNN(nn.Sequential):
    """Two 3x3 convolutions (32, 64), max-pool, linear 128, linear 10, without the original dropout. Input: 3x32x32."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10)),
        )
