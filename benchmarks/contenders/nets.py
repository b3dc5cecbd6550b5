"""Models of workloads that Hedgerow does not have built in."""

import torch
from torch import Tensor, nn


class PflCNN(nn.Sequential):
    """The model of pfl-research's CIFAR-10 benchmark.

    Two 3x3 convolutions (32, 64), max-pool, linear 128, linear 10, without the original dropout. Input: 3x32x32.
    """

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(64 * 14 * 14, 128), nn.ReLU(), nn.Linear(128, 10)),
        )


class CharGRU(nn.Module):
    """Next-character model: embedding of 8, one GRU layer of 128, linear layer on the last position."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru, self.out = nn.Embedding(128, 8), nn.GRU(8, 128, batch_first=True), nn.Linear(128, 65)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.gru(self.embed(x))[0][:, -1])


class CharTransformer(nn.Module):
    """Next-character model: 2 pre-norm layers of 4 heads, embedding of 64, 128 hidden units; 80 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(128, 64), nn.Parameter(0.02 * torch.randn(80, 64))
        layers = [nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True) for _ in range(2)]
        self.layers, self.out = nn.Sequential(*layers), nn.Linear(64, 65)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.embed(x) + self.place)[:, -1])


class NormBlock(nn.Module):
    """Basic block with batch normalisation by the statistics of each mini-batch."""

    def __init__(self, channels: int, out: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, out, 3, stride, 1, bias=False), _norm(out), nn.ReLU()),
            *(nn.Conv2d(out, out, 3, 1, 1, bias=False), _norm(out)),
        )
        self.skip = nn.Identity()
        if channels != out:
            self.skip = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), _norm(out))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.skip(x))


class NormResNet(nn.Sequential):
    """ResNet of 8 layers for 3x32x32, with 16, 32 and 64 channels."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(3, 16, 3, 1, 1, bias=False), _norm(16), nn.ReLU()),
            *(NormBlock(16, 16, 1), NormBlock(16, 32, 2), NormBlock(32, 64, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
        )


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)
