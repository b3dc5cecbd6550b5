"""The deployed mixture as a module."""

import numpy as np
import torch
from torch import nn

from hedgerow.searchspaces.results.deployed_model import Mixture


def test_a_mixture_returns_logarithms_of_the_weighted_mean_of_probabilities():
    models = [nn.Linear(3, 4), nn.Linear(3, 4)]
    x = torch.linspace(-2, 2, 15).reshape(5, 3)
    logits = [model(x).detach().double().numpy() for model in models]
    shares = [np.exp(one) / np.exp(one).sum(1, keepdims=True) for one in logits]
    expected = np.log(0.25 * shares[0] + 0.75 * shares[1])
    assert np.allclose(Mixture(models, [0.25, 0.75])(x).detach().numpy(), expected, atol=1e-6)
