"""Data and loss of FLUTE's logistic regression, which are those of FedML and LEAF."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from hedgerow.platform.data.dataset import Dataset
from hedgerow.platform.data.sources.vision import MNIST


def standardised_mnist(root: Path) -> Dataset:
    """MNIST with each pixel standardised over all 70,000 images (FedProx, data/mnist/generate_niid.py)."""
    dataset = MNIST(name="mnist").load(root)
    pixels = np.concatenate([dataset.x_train, dataset.x_test]).astype(np.float32)
    return replace(dataset, mean=pixels.mean(0), std=pixels.std(0) + np.float32(0.001))


def sigmoid_cross_entropy(outputs: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of softmax(sigmoid(outputs)) (FLUTE, experiments/cv_lr_mnist/model.py)."""
    return F.cross_entropy(outputs.sigmoid(), targets, reduction="none")
