"""Small images, models and objectives with a guide per client."""

import numpy as np
import torch
from helpers import (
    dataset,
    partition,
)
from torch import nn

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d
from hedgerow.algorithms.core.task import Task
from hedgerow.platform.models.preact_resnet import preact_resnet

RNG = np.random.default_rng(0)
Y = RNG.integers(0, 3, 70)
X = (60 * Y[:, None, None, None] + RNG.integers(0, 60, (70, 1, 4, 4))).astype(np.uint8)
DATA = dataset(X, Y, test=20)
CLIENTS, ALONE = partition(np.array([12, 3, 15, 20])), partition(np.array([50]))

GUIDE = {"guide_hidden": [4], "top_k": 2, "delta": 0.05, "lambda_min": 1.0, "lambda_period": 3}
DISK = {"kind": "disk", "alpha": 0.3, "temperature": 2.0, "guide": GUIDE}
SIMKD = {"kind": "simkd", "alpha": 0.0}
TOGETHER = {"kind": "simkd_disk", "alpha": 0.0, "temperature": 2.0, "guide": GUIDE}


def net(seed, widths, norm=False):
    torch.manual_seed(seed)
    if norm:
        layers = [nn.Linear(16, 5), StaticBatchNorm2d(5), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *layers, nn.Linear(5, 3))
    return preact_resnet(1, 3, widths, [1] * len(widths), 2)


def task(norm=False, augment=None, **parts):
    scale = torch.tensor([[[100.0]]])
    teacher = net(1, [4, 8]).requires_grad_(False)
    defaults = {"module": net(0, [2, 4], norm), "sample_shape": (1, 4, 4), "augment": augment, "teacher": teacher}
    return Task(**{**defaults, "mean": scale, "std": scale, **parts})
