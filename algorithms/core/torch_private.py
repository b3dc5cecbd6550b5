"""Private names of torch that this package uses, all tested with torch 2.15.0.

torch may rename or remove them in any release. Each function documents its fallback.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch
import torch.nn.utils.stateless
from torch import Tensor, nn

try:
    # `torch.func.grad` imports torch's compiler on its first call, which takes longer than importing torch. These names
    # avoid that import. Without them HAS_GRADIENT_LEVELS is False, and callers use `torch.func.grad_and_value`.
    from torch._functorch.eager_transforms import (
        _create_differentiable,
        _undo_create_differentiable,
        _wrap_tensor_for_grad,
        grad_increment_nesting,
    )

    HAS_GRADIENT_LEVELS = True
except ImportError:
    HAS_GRADIENT_LEVELS = False


def gradient_level() -> AbstractContextManager[int]:
    """Opens a differentiation level of torch.func. Requires HAS_GRADIENT_LEVELS, as do the next two functions."""
    return grad_increment_nesting()


def enter_level(tensor: Tensor, level: int) -> Tensor:
    """Wraps a tensor as a differentiable variable of a level."""
    return _create_differentiable(_wrap_tensor_for_grad(tensor, level), level)


def leave_level(tensor: Tensor, level: int) -> Tensor:
    """Unwraps a tensor from a level."""
    return _undo_create_differentiable(tensor, level)


def is_transformed() -> bool:
    """Whether this code runs under a transform of torch.func, such as vmap.

    Without `peek_interpreter_stack` it returns True: callers then use operations that work under every transform.
    """
    return _peek_interpreter_stack is None or _peek_interpreter_stack() is not None


_peek_interpreter_stack = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)


def without_levels(tensor: Tensor) -> Tensor:
    """Removes the differentiation levels of torch.func from a tensor, whose value is then a constant.

    Without these names the tensor is returned as it is: a value that leaves its level raises torch's own error.
    """
    functorch = getattr(torch._C, "_functorch", None)
    is_wrapped, unwrap = (getattr(functorch, name, None) for name in ("is_gradtrackingtensor", "get_unwrapped"))
    while is_wrapped and unwrap and is_wrapped(tensor):
        tensor = unwrap(tensor)
    return tensor


def batched_memory(tensor: Tensor) -> tuple[Tensor, list[int]]:
    """A tensor with the dimensions that vmap hides, first of all, and their levels, outermost first.

    Without these names they stay hidden.
    """
    hidden = None if _hidden_dimension is None else _hidden_dimension(tensor)
    if hidden is None or hidden < 0:
        return tensor, []
    memory, levels = batched_memory(_without_level(tensor))
    if hidden:
        memory = memory.movedim(len(levels) + hidden, len(levels))
    return memory, [*levels, _level_of(tensor)]


_hidden_dimension: Any
_level_of: Any
_without_level: Any
_hidden_dimension, _level_of, _without_level = (
    getattr(getattr(torch._C, "_functorch", None), name, None)
    for name in ("maybe_get_bdim", "maybe_get_level", "get_unwrapped")
)


_reparametrize_module: Callable[..., AbstractContextManager[Any]] | None
_reparametrize_module = getattr(torch.nn.utils.stateless, "_reparametrize_module", None)


def set_parameters(module: nn.Module, w: dict[str, Tensor]) -> AbstractContextManager[Any] | None:
    """Context in which a module has other parameters, as in `torch.func.functional_call`.

    Without the private name it returns None: callers then use `functional_call`.
    """
    return None if _reparametrize_module is None else _reparametrize_module(module, w, tie_weights=True)


GUARDS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
"""Names by which functions of torch.nn.functional ask whether they are overridden."""


@cache
def entered_function(function: FunctionType) -> Callable[..., Any] | None:
    """Returns a function that runs the body of a function of torch.nn.functional without asking for an override of it.

    An override by torch.overrides.TorchFunctionMode can then replace the functions that the body calls. Returns None
    if the body does not ask itself, or asks by a name that is not in `GUARDS`: it is then called without overrides.
    """
    if not set(GUARDS) & set(function.__code__.co_names):
        return None
    unguarded = dict.fromkeys(GUARDS, lambda *_: False)
    body = FunctionType(
        function.__code__,
        {**function.__globals__, **unguarded},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _each(name: str, tensors: Sequence[Tensor], *others: Any, **options: Any) -> list[Tensor]:
    """Calls a method of every tensor; lists among `others` have one entry per tensor."""
    columns = [other if isinstance(other, Sequence) else [other] * len(tensors) for other in others]
    return [getattr(tensor, name)(*rest, **options) for tensor, *rest in zip(tensors, *columns, strict=True)]


def _foreach(name: str) -> Callable[..., Any]:
    """Returns an operation on lists of tensors, one kernel on a GPU. Fallback: one call per tensor, equal results."""
    return getattr(torch, f"_foreach_{name}", None) or partial(_each, name)


foreach_add_ = _foreach("add_")
foreach_mul_ = _foreach("mul_")
foreach_lerp_ = _foreach("lerp_")
foreach_norm = _foreach("norm")


def allow_recompilations(limit: int) -> None:
    """Raises the limit on how often `torch.compile` compiles one function, in this process.

    If torch has removed a setting, its default stays; torch raises its own error when the limit is reached.
    """
    config: Any = torch._dynamo.config
    for name in ("recompile_limit", "accumulated_recompile_limit"):
        if hasattr(config, name):
            setattr(config, name, limit)


def _base(module: Any, name: str, *public: type[nn.Module]) -> tuple[type[nn.Module], ...]:
    """Returns a private base class; if it is gone, the public classes, which do not cover a user's subclass of it."""
    return (getattr(module, name),) if hasattr(module, name) else public


BATCH_NORMS = _base(nn.modules.batchnorm, "_BatchNorm", nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
TRACKING_NORMS = _base(nn.modules.batchnorm, "_NormBase", nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)


def submodules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Returns the direct submodules in order, including repeated ones, which `named_children` lists once.

    If `_modules` is gone, each submodule is listed once.
    """
    children = getattr(module, "_modules", None)
    return list(module.named_children() if children is None else children.items())


def compute_capabilities() -> list[str]:
    """CUDA compute capabilities that torch's kernels are compiled for, such as "9.0"; without the name, an empty list.

    torch.cuda.get_arch_list is empty on a machine without a GPU.
    """
    flags = getattr(torch._C, "_cuda_getArchFlags", lambda: None)() or ""
    numbers = [name.removeprefix("sm_") for name in flags.split() if name.removeprefix("sm_").isdigit()]
    return [f"{number[:-1]}.{number[-1]}" for number in numbers]
