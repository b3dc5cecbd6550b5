"""Replacements of torch functions inside a user's model: keyed random numbers, and norms of padded mini-batches."""

import math
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from hedgerow.algorithms.core.keyed_random import box_muller, derived, scattered, scattered_in_place
from hedgerow.algorithms.core.torch_private import entered_function, is_transformed

BLOCK = 2**15
"""Words that are hashed at a time on a CPU: they stay in a core's cache."""

ALPHA = -1.7580993408473766
"""Negative saturation value of SELU, for alpha dropout (Klambauer et al., "Self-Normalizing Neural Networks", 2017)."""


class NotBatchable(RuntimeError):  # noqa: N818
    """A layer cannot run for several clients at once."""


class KeyedFunctions(TorchFunctionMode):
    """Replaces functions of torch while a module runs.

    key: two words of 32 bits, from which random numbers follow; None: random functions are left alone.
    mask: 1 for real samples of a padded mini-batch; None: all samples are real. is_unknown: it is not known which are.
    in_batch: whether batch norms use the statistics of the mini-batch in place of running ones.
    """

    def __init__(self, key: tuple[Any, Any] | None, mask: Tensor | None, is_unknown: bool, in_batch: bool):
        super().__init__()
        self.key, self.mask, self.is_unknown, self.in_batch = key, mask, is_unknown, in_batch
        self._replaced = _NORMS if key is None else _ALL
        self.is_random = self.uses_batches = False
        """Whether random numbers, or statistics of the mini-batch, were used."""
        self.updates: dict[int, Tensor] = {}
        """New value of each buffer that could not be changed in place, by the identity of the buffer."""
        self._draws = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            name = self._replaced.get(func)
        except TypeError:  # not hashable
            name = None
        if name is not None:
            return getattr(self, name)(func, *args, **kwargs)
        is_python = isinstance(func, FunctionType) and func.__module__ == F.__name__
        if is_python and (entered := entered_function(func)):
            # It calls other functions, which are to be replaced, too.
            with self:
                return entered(*args, **kwargs)
        return func(*args, **kwargs)

    # ---- random numbers ----------------------------------------------------------------------------------------------

    def _words(self, shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
        """32 random bits for each entry, in int64 or, on a CPU without vmap, uint32."""
        assert self.key is not None
        self.is_random = True
        self._check_first_dimension(shape)
        first, second = derived(self.key, self._draws)
        self._draws += 1
        n = math.prod(shape)
        if isinstance(first, int) and device.type == "cpu":
            words = np.arange(n, dtype=np.uint32)
            for start in range(0, n, BLOCK):
                block = words[start : start + BLOCK]
                block ^= np.uint32(first)
                scattered_in_place(block)
                block ^= np.uint32(second)
                scattered_in_place(block)
            return torch.from_numpy(words).view(tuple(shape))
        at = torch.arange(n, device=device)
        return scattered(scattered(at ^ first) ^ second).view(tuple(shape))

    def _check_first_dimension(self, shape: torch.Size | tuple[int, ...]) -> None:
        """Raises NotBatchable if padding would shift the random numbers of real samples."""
        if self.mask is not None and shape and shape[0] % len(self.mask):
            raise NotBatchable(
                "a layer draws random numbers for a tensor whose first dimension is not that of the samples"
            )

    def _uniform(self, shape: torch.Size | tuple[int, ...], device: torch.device) -> Tensor:
        """Uniform numbers in [0, 1), float32."""
        # float32 represents 24 bits exactly.
        return (self._words(shape, device).to(torch.int64) >> 8).float() / 2**24

    def _keep(self, x: Tensor, p: float, shape: torch.Size | tuple[int, ...]) -> Tensor:
        """Mask of the entries that dropout keeps, with the type of x."""
        words = self._words(shape, x.device)
        if words.dtype != torch.int64:
            kept = torch.from_numpy(words.numpy() >= min(round(p * 2**32), 2**32))
        else:
            kept = words >= round(p * 2**32)
        return kept.to(x.dtype)

    def _dropout(self, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0:
            return input
        factor = self._factor(func, input, p)
        return input.mul_(factor) if func in _IN_PLACE else input * factor

    def _factor(self, func: Any, x: Tensor, p: float) -> Tensor:
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if func in _WHOLE_FEATURES else x.shape
        return self._keep(x, p, shape) * (1 / (1 - p) if p < 1 else 0.0)

    def _alpha_dropout(self, func: Any, input: Tensor, p: float, train: bool) -> Tensor:
        if not train or p == 0:
            return input
        shape = (*input.shape[:2], *[1] * (input.dim() - 2)) if func in _WHOLE_FEATURES else input.shape
        kept = self._keep(input, p, shape)
        scale = ((1 - p) * (1 + p * ALPHA**2)) ** -0.5 if p < 1 else 0.0
        output = scale * (input * kept + ALPHA * (1 - kept)) - scale * ALPHA * p
        return input.copy_(output) if func in _IN_PLACE else output

    def _bernoulli(self, func: Any, input: Tensor, p: Any = None, *, generator: Any = None) -> Tensor:
        chances = input if p is None else p
        return (self._uniform(input.shape, input.device) < chances).to(input.dtype)

    def _bernoulli_in_place(self, func: Any, input: Tensor, p: Any = 0.5, *, generator: Any = None) -> Tensor:
        return input.copy_(self._uniform(input.shape, input.device) < p)

    def _rand(self, func: Any, *size: Any, generator: Any = None, **options: Any) -> Tensor:
        like = torch.empty(*size, **options)
        return self._uniform(like.shape, like.device).to(like.dtype)

    def _rand_like(self, func: Any, input: Tensor, **options: Any) -> Tensor:
        like = torch.empty_like(input, **options)
        return self._uniform(like.shape, like.device).to(like.dtype)

    def _normal(self, shape: torch.Size, device: torch.device) -> Tensor:
        first, second = (self._words(shape, device).to(torch.int64) for _ in range(2))
        return box_muller(first, second)

    def _randn(self, func: Any, *size: Any, generator: Any = None, **options: Any) -> Tensor:
        like = torch.empty(*size, **options)
        return self._normal(like.shape, like.device).to(like.dtype)

    def _randn_like(self, func: Any, input: Tensor, **options: Any) -> Tensor:
        like = torch.empty_like(input, **options)
        return self._normal(like.shape, like.device).to(like.dtype)

    def _empty(self, func: Any, *size: Any, **options: Any) -> Tensor:
        tensor = func(*size, **options)
        if not is_transformed() or not tensor.is_floating_point():
            return tensor
        # A tensor to be filled with random numbers needs one copy per client: stochastic depth does so.
        assert self.key is not None
        return torch.zeros_like(tensor) + (self.key[0] * 0).to(tensor.dtype)

    # ---- attention ---------------------------------------------------------------------------------------------------

    def _attention(
        self,
        func: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention as torch documents it: its kernels take no random numbers, and have no batching rule."""
        is_dropped = dropout_p > 0 and self.key is not None
        if not is_dropped and not is_transformed():
            options = {"scale": scale, "enable_gqa": enable_gqa}
            return func(query, key, value, attn_mask, dropout_p, is_causal, **options)
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(groups, -3) for part in (key, value))
        weights = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(weights.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            is_bool = attn_mask.dtype == torch.bool
            weights = weights.masked_fill(~attn_mask, -torch.inf) if is_bool else weights + attn_mask
        weights = weights.softmax(-1)
        if is_dropped:
            weights = weights * self._factor(func, weights, dropout_p)
        return weights @ value

    # ---- batch norm --------------------------------------------------------------------------------------------------

    def _batch_norm(
        self,
        func: Any,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        shape = (1, -1, *[1] * (input.dim() - 2))

        def scaled(normal: Tensor) -> Tensor:
            normal = normal if weight is None else normal * weight.view(shape)
            return normal if bias is None else normal + bias.view(shape)

        if self.in_batch:
            training, running_mean, running_var = True, None, None
        if not training:
            assert running_mean is not None
            assert running_var is not None
            if not is_transformed():
                return func(input, running_mean, running_var, weight, bias, False, momentum, eps)
            return scaled((input - running_mean.view(shape)) * (running_var + eps).rsqrt().view(shape))
        self.uses_batches = True
        is_single = input.numel() == input.shape[1]
        if is_transformed():
            return scaled(self._normalized(input, running_mean, running_var, momentum, eps, shape))
        if is_single:
            # A single value per channel is its own mean, and has no variance: running statistics stay as they are.
            return scaled(0 * input)
        return func(input, running_mean, running_var, weight, bias, True, momentum, eps)

    def _normalized(
        self, x: Tensor, mean: Tensor | None, variance: Tensor | None, momentum: float, eps: float, shape: Any
    ) -> Tensor:
        """x, normalised by the mean and the variance of the real samples; notes the new running statistics."""
        mask = x.new_ones(len(x)) if self.mask is None else self.mask
        if self.is_unknown or len(mask) != len(x):
            raise NotBatchable("a batch norm is not applied to one row per sample, so that padding cannot be left out")
        real = mask.view(-1, *[1] * (x.dim() - 1)).to(x.dtype)
        dims = [0, *range(2, x.dim())]
        n = mask.sum().to(x.dtype) * (x.numel() // (x.shape[0] * x.shape[1]))
        centre = (x * real).sum(dims) / n.clamp(min=1)
        offset = x - centre.view(shape)
        spread = (offset.square() * real).sum(dims) / n.clamp(min=1)
        if mean is not None and variance is not None:
            unbiased = spread * n / (n - 1).clamp(min=1)
            for buffer, value in ((mean, centre), (variance, unbiased)):
                before = self.updates.get(id(buffer), buffer)
                after = (1 - momentum) * before + momentum * value
                self.updates[id(buffer)] = torch.where(n > 1, after, before)
        return offset * (spread + eps).rsqrt().view(shape)


_NORMS: dict[Any, str] = {F.batch_norm: "_batch_norm", F.scaled_dot_product_attention: "_attention"}

_RANDOM: dict[Any, str] = {
    torch.dropout: "_dropout",
    torch.dropout_: "_dropout",
    torch.feature_dropout: "_dropout",
    torch.feature_dropout_: "_dropout",
    torch.alpha_dropout: "_alpha_dropout",
    torch.alpha_dropout_: "_alpha_dropout",
    torch.feature_alpha_dropout: "_alpha_dropout",
    torch.feature_alpha_dropout_: "_alpha_dropout",
    torch.bernoulli: "_bernoulli",
    Tensor.bernoulli: "_bernoulli",
    Tensor.bernoulli_: "_bernoulli_in_place",
    torch.rand: "_rand",
    torch.rand_like: "_rand_like",
    torch.randn: "_randn",
    torch.randn_like: "_randn_like",
    torch.empty: "_empty",
}
"""Function of torch -> method that replaces it."""

_ALL = _NORMS | _RANDOM

_IN_PLACE: set[Callable[..., Any]] = {
    torch.dropout_,
    torch.feature_dropout_,
    torch.alpha_dropout_,
    torch.feature_alpha_dropout_,
}

_WHOLE_FEATURES: set[Callable[..., Any]] = {
    torch.feature_dropout,
    torch.feature_dropout_,
    torch.feature_alpha_dropout,
    torch.feature_alpha_dropout_,
}
