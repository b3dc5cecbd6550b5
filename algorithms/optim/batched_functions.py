"""Functions of torch while gradients of many clients are computed without torch.func, see `gradient.py`."""

from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hedgerow.algorithms.core.torch_private import batched_memory, hide_dimensions, whole_memory, without_transforms


class TransformNeededError(Exception):
    """Raised by a function whose gradient only torch.func computes for many clients at once."""


OWN_FUNCTIONS = (
    *(BuiltinFunctionType, FunctionType),
    *(MethodDescriptorType, MethodWrapperType, WrapperDescriptorType),
)
"""Types of torch's own functions. Those of others are operators: they may have a backward of their own, which the one
for many clients does not use."""

NEED_TRANSFORMS = {
    # Their results depend on whether a tensor requires a gradient, which those of many clients do not show.
    *(Tensor.requires_grad.__get__, Tensor.grad_fn.__get__, Tensor.is_leaf.__get__),  # type: ignore[attr-defined, union-attr]
    *(functional.scaled_dot_product_attention, functional.multi_head_attention_forward, functional.embedding_bag),
    # The tensors of single clients are in no graph.
    *(Tensor.register_hook, Tensor.register_post_accumulate_grad_hook, Tensor.retain_grad),
}


class BatchedFunctions(TorchFunctionMode):
    """Context in which linear layers of many clients are one batched product, with fast products for its gradient.

    Layers that clients share stay as they are: vmap makes one large product of them. Calls of other functions raise
    TransformNeededError if their gradients would be wrong.

    levels: of vmap, outermost first, with their sizes.
    """

    def __init__(self, levels: dict[int, int]):
        super().__init__()
        self.levels = levels

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is functional.linear:
            result = _linear(self.levels, *args, **kwargs)
            if result is not None:
                return result
        elif not isinstance(function, OWN_FUNCTIONS) or function in NEED_TRANSFORMS:
            raise TransformNeededError(getattr(function, "__name__", str(function)))
        return function(*args, **kwargs)


def _linear(sizes: dict[int, int], input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    """Linear layer with a weight (out, in) for each client and variant; None if some of them share it.

    Variants may share the input.
    """
    levels = list(sizes)
    (w, own), (_, of_input) = batched_memory(weight), batched_memory(input)
    # Without levels, the input may belong to a transform within the loss.
    if weight.dim() != 2 or own != levels or not of_input or not set(of_input) <= set(levels):
        return None
    b, of_bias = (None, levels) if bias is None else batched_memory(bias)
    if of_bias != levels:
        return None
    x = whole_memory(input, sizes)
    with without_transforms():
        clients = w.shape[: len(levels)].numel()
        rows = x.reshape(clients, -1, x.shape[-1])
        w = w.reshape(clients, *weight.shape)
        # Products with the weight on the left: those of its gradient are then several times faster.
        out = torch.bmm(w, rows.mT) if b is None else torch.baddbmm(b.reshape(clients, -1, 1), w, rows.mT)
        out = out.mT if input.dim() <= 2 else out.mT.contiguous()
        out = out.reshape(*x.shape[:-1], weight.shape[0])
    return hide_dimensions(out, levels)
