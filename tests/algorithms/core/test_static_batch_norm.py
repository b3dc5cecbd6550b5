"""Static batch norm of mini-batches of any size, for features and images."""

import pytest
import torch

from hedgerow.algorithms.core.static_batch_norm import StaticBatchNorm2d


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1)], ids=["features", "images"])
def test_a_single_value_per_channel_is_its_own_mean(shape):
    norm = StaticBatchNorm2d(3)
    norm.bias.data = torch.tensor([1.0, -2.0, 0.5])
    out = norm(torch.randn(1, *shape))
    assert out.shape == (1, *shape)
    assert out.flatten().tolist() == [1.0, -2.0, 0.5]


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (2, 3), (2, 3, 1, 1)], ids=str)
def test_several_values_are_normalised_by_their_mean_and_variance(shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    dims = [0, *range(2, x.dim())]
    centre, spread = x.mean(dims, keepdim=True), x.var(dims, correction=0, keepdim=True)
    torch.testing.assert_close(StaticBatchNorm2d(3)(x), (x - centre) / (spread + 1e-5).sqrt())
