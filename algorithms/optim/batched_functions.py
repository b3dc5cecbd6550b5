"""Functions of torch that take a slow path under vmap, in the memory that vmap hides."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hedgerow.algorithms.core.torch_private import batched_memory, hidden_again, without_transforms


class BatchedFunctions(TorchFunctionMode):
    """Context in which the linear layers of many clients are one batched product, with fast products for its gradient.

    Layers that clients share stay as they are: vmap makes one large product of them.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.linear and (result := _linear(*args, **(kwargs or {}))) is not None:
            return result
        return function(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Linear layer with a weight for each client; None if the clients share one."""
    tensors = [input, weight] if bias is None else [input, weight, bias]
    memories = [batched_memory(tensor) for tensor in tensors]
    levels = memories[1][1]
    if not levels or any(own != levels for _, own in memories):
        return None
    x, w = memories[0][0], memories[1][0]
    with without_transforms():
        many = w.shape[: len(levels)]
        rows = x.reshape(many.numel(), -1, x.shape[-1])
        w = w.reshape(many.numel(), *weight.shape)
        # Products with the weight on the left: those of its gradient are then several times faster.
        if bias is None:
            out = torch.bmm(w, rows.mT)
        else:
            out = torch.baddbmm(memories[2][0].reshape(many.numel(), -1, 1), w, rows.mT)
        out = out.mT.reshape(*x.shape[:-1], out.shape[1])
    return hidden_again(out, levels)
