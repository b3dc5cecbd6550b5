"""Random augmentation T(x) of images. Randomness comes from keyed hashes, sample by sample."""

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.keyed_random import randint
from hedgerow.platform.data.auto_augment import auto_augment

CROP_Y, CROP_X, FLIP, HOLE_Y, HOLE_X = range(5)
"""Purposes of random draws. AutoAugment uses higher numbers."""


class Augmentation(Settings):
    """Augmentation of training images, applied to raw pixels in the order of the fields, before normalisation.

    Usual settings for CIFAR: `{crop: 4, flip: true, auto: true, cutout: 16}`.
    """

    crop: int = Field(
        0, ge=0, description="black pixels that pad each side of an image before a random crop to its own size; 0: none"
    )
    flip: bool = Field(False, description="mirror images horizontally with probability 1/2")
    auto: bool = Field(False, description="AutoAugment with the CIFAR-10 policy, for 8-bit images")
    cutout: int = Field(0, ge=0, description="side of a black square at a random position in the image; 0: none")

    def __call__(self, x: Tensor, key: Tensor, rows: Tensor) -> Tensor:
        """Augments raw pixels x (samples, C, H, W) -> float32. key: of this mini-batch. rows: number of each sample."""
        x = x.float()
        if self.crop or self.flip:
            x = _moved(x, self.crop, self.flip, key, rows)
        if self.auto:
            x = auto_augment(x, key, rows)
        if self.cutout:
            x = _cut_out(x, self.cutout, key, rows)
        return x


def _moved(x: Tensor, padding: int, flip: bool, key: Tensor, rows: Tensor) -> Tensor:
    """Random crop from a black frame of `padding` pixels (He et al., 2015, 4.2), mirrored with probability 1/2."""
    n, channels, height, width = x.shape
    x = F.pad(x, (padding,) * 4)
    down = randint(2 * padding + 1, key, rows, CROP_Y)[:, None] + torch.arange(height, device=x.device)
    across = torch.arange(width, device=x.device).expand(n, width)
    if flip:
        across = torch.where(randint(2, key, rows, FLIP)[:, None] == 1, across.flip(-1), across)
    across = across + randint(2 * padding + 1, key, rows, CROP_X)[:, None]
    x = x.gather(2, down[:, None, :, None].expand(n, channels, height, width + 2 * padding))
    return x.gather(3, across[:, None, None, :].expand(n, channels, height, width))


def _cut_out(x: Tensor, side: int, key: Tensor, rows: Tensor) -> Tensor:
    """Black square around a random pixel, clipped at the border (DeVries and Taylor, "Cutout", 2017)."""
    inside = []
    for size, purpose in ((x.shape[-2], HOLE_Y), (x.shape[-1], HOLE_X)):
        first = randint(size, key, rows, purpose)[:, None] - side // 2
        at = torch.arange(size, device=x.device)
        inside.append((at >= first) & (at < first + side))
    return x * ~(inside[0][:, None, :, None] & inside[1][:, None, None, :])
