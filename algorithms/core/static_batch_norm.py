"""Static batch normalisation (Diao et al., "HeteroFL", 2021, section 3): no statistics are kept or transmitted."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from hedgerow.algorithms.core.torch_private import call

Params = dict[str, Tensor]


class StaticBatchNorm2d(nn.Module):
    """Batch normalisation of images (batch, C, H, W) or features (batch, C) without running statistics.

    It uses the statistics of the mini-batch, or, at evaluation, the buffers `mean` and `variance`, which are passed
    through `call`.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        for name in ("mean", "variance"):
            self.register_buffer(name, torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.mean):
            return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias)
        if x.numel() == x.shape[1]:
            # A single value per channel is its own mean: the normalised value is 0, and the output is the bias.
            return self.bias.view(-1, *[1] * (x.dim() - 2)) + 0 * x
        return F.batch_norm(x, None, None, self.weight, self.bias, training=True)


def is_static(module: nn.Module) -> bool:
    """Whether a module contains static batch normalisation."""
    return any(isinstance(layer, StaticBatchNorm2d) for layer in module.modules())


def statistics(module: nn.Module, w: Params, x: Tensor) -> Params:
    """Mean and unbiased variance (C,) of the input of every StaticBatchNorm2d over a mini-batch, by buffer name."""
    buffers: Params = {}

    def look(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> None:
            has_several = inputs[0].numel() > inputs[0].shape[1]
            variance, mean = torch.var_mean(inputs[0], dim=[0, *range(2, inputs[0].dim())], correction=int(has_several))
            buffers.update({f"{name}.mean": mean, f"{name}.variance": variance})

        return hook

    layers = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, StaticBatchNorm2d)]
    handles = [layer.register_forward_pre_hook(look(name)) for name, layer in layers]
    try:
        with torch.no_grad():
            call(module, w, x)
    finally:
        for handle in handles:
            handle.remove()
    return buffers
