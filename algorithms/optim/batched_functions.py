"""Functions of torch while gradients of many clients are computed without torch.func, see `gradient.py`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from hedgerow.algorithms.core.torch_private import (
    batched_memory,
    hide_dimensions,
    is_in_graph,
    vmap_levels,
    whole_memory,
    without_transforms,
)


class TransformNeededError(Exception):
    """Raised by a function whose gradient only torch.func is known to compute for many clients at once."""


@contextmanager
def batched_attention() -> Iterator[None]:
    """Context in which torch computes attention by operations that have batching rules, and by no kernel."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


DIFFERENTIABLE = (
    # Functions of each entry.
    *("abs", "absolute", "neg", "negative", "positive", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    *("sqrt", "rsqrt", "square", "reciprocal", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh"),
    *("asinh", "acosh", "atanh", "sigmoid", "logit", "erf", "erfc", "clamp", "clip", "clamp_min", "clamp_max"),
    *("relu", "relu6", "leaky_relu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus", "softsign"),
    *("hardtanh", "hardsigmoid", "hardswish", "tanhshrink", "softshrink", "hardshrink", "logsigmoid", "threshold"),
    *("nan_to_num", "ceil", "floor", "round", "trunc", "sign", "relu_", "leaky_relu_", "clamp_", "__neg__", "__abs__"),
    # Arithmetic.
    *("add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "pow", "maximum", "minimum"),
    *("where", "lerp", "addcmul", "addcdiv", "atan2", "hypot", "logaddexp", "xlogy", "masked_fill", "add_", "sub_"),
    *("mul_", "div_", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__"),
    *("__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__pow__", "__rpow__", "__matmul__", "__rmatmul__"),
    # Products.
    *("linear", "bilinear", "matmul", "mm", "bmm", "mv", "dot", "outer", "addmm", "baddbmm", "einsum", "tensordot"),
    # Reductions.
    *("sum", "mean", "prod", "var", "std", "var_mean", "std_mean", "amax", "amin", "norm", "logsumexp", "cumsum"),
    *("cumprod", "softmax", "log_softmax", "softmin", "sort", "topk", "nansum"),
    # Shapes and parts.
    *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "squeeze", "unsqueeze", "permute"),
    *("transpose", "t", "movedim", "swapaxes", "expand", "expand_as", "broadcast_to", "repeat", "repeat_interleave"),
    *("tile", "cat", "concat", "stack", "hstack", "vstack", "split", "chunk", "unbind", "tensor_split", "narrow"),
    *("select", "__getitem__", "__iter__", "index_select", "gather", "take_along_dim", "flip", "roll", "tril", "triu"),
    *("diagonal", "unfold", "pad", "contiguous", "clone", "to", "float", "double", "type_as", "pixel_shuffle"),
    *("pixel_unshuffle", "channel_shuffle"),
    # Layers.
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "max_pool1d", "max_pool2d", "max_pool3d"),
    *("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d"),
    *("adaptive_max_pool2d", "group_norm", "rms_norm", "normalize", "local_response_norm", "cosine_similarity"),
    *("pairwise_distance", "glu", "interpolate"),
    *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
    *("scaled_dot_product_attention", "multi_head_attention_forward"),
    # Losses.
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy"),
    *("binary_cross_entropy_with_logits", "kl_div", "soft_margin_loss"),
)
"""Names of functions whose gradients on the tensors of many clients are those of each client. Each one has a test that
compares its gradient, and the gradient of its gradient, with those of PyTorch for one client after the other."""

FIRST_ORDER = ("layer_norm", "batch_norm", "instance_norm", "huber_loss")
"""The same, except for the gradient of their gradient, which only torch.func computes for many clients."""

CONSTANT = (
    *("eq", "ne", "lt", "le", "gt", "ge", "__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "isnan", "isinf"),
    *("isfinite", "argmax", "argmin", "argsort", "any", "all", "count_nonzero", "detach", "zeros_like", "ones_like"),
    *("full_like", "new_zeros", "new_ones", "new_full", "size", "stride", "dim", "ndimension", "numel", "nelement"),
    *("is_floating_point", "is_complex", "__len__"),
)
"""Names of functions whose results have no gradient."""

PROPERTIES = ("shape", "ndim", "dtype", "device", "layout", "is_sparse", "is_nested", "is_cuda", "itemsize", "T", "mT")


def named(*names: str) -> frozenset[Any]:
    """Functions of torch and torch.nn.functional, methods of tensors and operators with these names."""
    modules = [(module, name) for name in names for module in (torch, functional) if not name.startswith("__")]
    functions = [getattr(place, name, None) for place, name in [*modules, *((Tensor, name) for name in names)]]
    # torch.float is a type.
    return frozenset(function for function in functions if callable(function))


KNOWN = named(*DIFFERENTIABLE, *CONSTANT) | {
    *(getattr(Tensor, name).__get__ for name in PROPERTIES),
    # Of a gradient within the loss, which has a level of its own.
    *(torch.autograd.grad, Tensor.requires_grad_),
}
"""Functions that tensors of many clients may enter. Others may depend on whether a tensor requires a gradient, or do
something else in their backward than the derivative of what they compute for many clients at once."""


def is_known(function: Any, args: Any, kwargs: Any, is_nested: Callable[[], bool]) -> bool:
    """Whether the gradients of a call are those of each client. is_nested: whether it is within another gradient."""
    if function in KNOWN:
        return True
    if function in _FIRST_ORDER:
        return not is_nested()
    if function is functional.embedding:
        return _selects_rows(*args, **kwargs)
    if function in _EXTREMES:
        # Over all entries, equal ones share the gradient, but not those of many clients.
        return len(args) + len(kwargs) > 1
    return False


_FIRST_ORDER, _EXTREMES = named(*FIRST_ORDER), named("max", "min")


class BatchedFunctions(TorchFunctionMode):
    """Context in which linear layers of many clients are one batched product, with fast products for its gradient.

    Layers that clients share stay as they are: vmap makes one large product of them. Calls of functions that are not
    known raise TransformNeededError, unless their results are constants.

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
        elif not is_known(function, args, kwargs, self._is_nested) and any(map(is_in_graph, _tensors((args, kwargs)))):
            raise TransformNeededError(getattr(function, "__name__", str(function)))
        return function(*args, **kwargs)

    def _is_nested(self) -> bool:
        return vmap_levels() != self.levels


def _selects_rows(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> bool:
    """Whether an embedding selects rows, and its backward does nothing else."""
    return padding_idx is None and max_norm is None and not scale_grad_by_freq and not sparse


def _tensors(arguments: Any) -> Iterable[Tensor]:
    """Tensors among arguments, also within lists, tuples and dictionaries."""
    if isinstance(arguments, Tensor):
        yield arguments
    elif isinstance(arguments, (tuple, list, dict)):
        for argument in arguments.values() if isinstance(arguments, dict) else arguments:
            yield from _tensors(argument)


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
