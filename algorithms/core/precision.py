"""Precision of a model's products, which the engine sets around client steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import torch
from torch import Tensor, nn

Precision = Literal["float32", "tf32", "bfloat16"]

_in_bfloat16: ContextVar[bool] = ContextVar("in_bfloat16", default=False)


@contextmanager
def precision_of_models(precision: Precision) -> Iterator[None]:
    """Context in which models compute in this precision. tf32: a setting of the whole process, made elsewhere."""
    token = _in_bfloat16.set(precision == "bfloat16")
    try:
        yield
    finally:
        _in_bfloat16.reset(token)


def run_model(module: nn.Module, *inputs: Any, **options: Any) -> Any:
    """Output of a module in the precision of the context; numbers of bfloat16 are returned in float32.

    With bfloat16, PyTorch's autocast chooses the precision of each operation; parameters and their gradients stay in
    float32.
    """
    if not _in_bfloat16.get():
        return module(*inputs, **options)
    # Without the cache, since parameters change in place between two calls.
    with torch.autocast(inputs[0].device.type, torch.bfloat16, cache_enabled=False):
        return _widened(module(*inputs, **options))


def _widened(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.float() if output.dtype == torch.bfloat16 else output
    if isinstance(output, dict):
        return {key: _widened(value) for key, value in output.items()}
    return type(output)(map(_widened, output)) if type(output) in (tuple, list) else output
