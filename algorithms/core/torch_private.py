"""Private names of torch that this package uses, all tested with torch 2.15.0.

torch may rename or remove them in any release. Each function documents its fallback.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary

import torch
from torch import Tensor, nn

from hedgerow.algorithms.core.precision import run_model

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


try:
    # Without these names HAS_VMAP_LEVELS is False, and callers leave everything to torch.func.
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    HAS_VMAP_LEVELS = all(
        hasattr(torch._C._functorch, name)
        for name in (
            *("CVmapInterpreterPtr", "TransformType", "_add_batch_dim", "get_interpreter_stack"),
            *("get_unwrapped", "maybe_get_bdim", "maybe_get_level"),
        )
    )
except ImportError:
    HAS_VMAP_LEVELS = False


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


def is_batched(value: Any) -> bool:
    """Whether a value is a tensor with a dimension that vmap hides; without the name: whether it is a tensor."""
    if not isinstance(value, Tensor):
        return False
    return _hidden_dimension is None or _hidden_dimension(without_levels(value)) >= 0


def is_in_graph(tensor: Tensor) -> bool:
    """Whether a gradient can flow through a tensor, at any of the levels of torch.func; without these names: at the
    innermost one.
    """
    while not tensor.requires_grad:
        if _without_level is None or _level_of is None or _level_of(tensor) < 0:
            return False
        tensor = _without_level(tensor)
    return True


_hidden_dimension: Any
_level_of: Any
_without_level: Any
_hidden_dimension, _level_of, _without_level = (
    getattr(getattr(torch._C, "_functorch", None), name, None)
    for name in ("maybe_get_bdim", "maybe_get_level", "get_unwrapped")
)


def vmap_levels() -> dict[int, int] | None:
    """Levels of vmap that this code runs under, outermost first, with the size of the dimension that each one hides.

    Returns None under another transform of torch.func, and without the private names.
    """
    if not HAS_VMAP_LEVELS:
        return None
    functorch = torch._C._functorch
    stack = functorch.get_interpreter_stack() or []
    if any(interpreter.key() != functorch.TransformType.Vmap for interpreter in stack):
        return None
    return {one.level(): functorch.CVmapInterpreterPtr(one).batchSize() for one in stack}


def whole_memory(tensor: Tensor, levels: dict[int, int]) -> Tensor:
    """A tensor with the dimensions that these levels of vmap hide as its first ones, repeated where it has none."""
    memory, own = batched_memory(tensor)
    if len(own) == len(levels):
        return memory
    sizes, rest = [size if level in own else 1 for level, size in levels.items()], memory.shape[len(own) :]
    return memory.reshape(*sizes, *rest).expand(*levels.values(), *rest)


def hide_dimensions(memory: Tensor, levels: Iterable[int]) -> Tensor:
    """A tensor whose first dimensions vmap hides: the inverse of `batched_memory`. Requires HAS_VMAP_LEVELS."""
    for level in levels:
        memory = torch._C._functorch._add_batch_dim(memory, 0, level)
    return memory


def without_transforms() -> AbstractContextManager[Any]:
    """Context in which the transforms of torch.func do not act. Requires HAS_VMAP_LEVELS."""
    return temporarily_clear_interpreter_stack()


@contextmanager
def set_parameters(module: nn.Module, w: dict[str, Tensor]) -> Iterator[None]:
    """Context in which a module has other parameters, as in `torch.func.functional_call`, tied ones included.

    Parameters count as tied if they were so at the first call. There is no fallback for the private dictionaries of
    torch.nn.Module.
    """
    given = [
        (table, key, name)
        for names, table, key in _places(module)
        if (name := next((name for name in names if name in w), None)) is not None
    ]
    before = [table[key] for table, key, _ in given]
    try:
        for table, key, name in given:
            table[key] = w[name]
        yield
    finally:
        for (table, key, _), tensor in zip(given, before, strict=True):
            table[key] = tensor


class _Structure(NamedTuple):
    """Structure of a module. places: names, dictionary and key of each parameter and buffer."""

    places: list[tuple[tuple[str, ...], dict[str, Any], str]]
    children: list[tuple[dict[str, Any], dict[str, Any]]]
    """Dictionary of each module's children, and its copy."""
    sizes: list[tuple[dict[str, Any], int]]

    @property
    def is_current(self) -> bool:
        return all(now == then for now, then in self.children) and all(len(table) == n for table, n in self.sizes)


_known: WeakKeyDictionary[nn.Module, _Structure] = WeakKeyDictionary()


def _places(module: nn.Module) -> list[tuple[tuple[str, ...], dict[str, Any], str]]:
    """Names, dictionary and key of each parameter and buffer of a module; tied ones have several names."""
    known = _known.get(module)
    if known is None or not known.is_current:
        names: dict[Tensor, list[str]] = {}
        found, children, sizes = [], [], []
        for prefix, part in module.named_modules(remove_duplicate=False):
            children.append((part._modules, dict(part._modules)))
            for table in (part._parameters, part._buffers):
                sizes.append((table, len(table)))
                for key, tensor in table.items():
                    name = f"{prefix}.{key}".removeprefix(".")
                    mine = [] if tensor is None else names.setdefault(tensor, [])
                    mine.append(name)
                    found.append((mine, table, key))
        known = _known[module] = _Structure([(tuple(mine), *place) for mine, *place in found], children, sizes)
    return known.places


def tables_of(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Attributes of a module, its own parameters, and its own buffers, in the dictionaries that have them."""
    return vars(module), module._parameters, module._buffers


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """Attributes of a module other than parameters, buffers, submodules and the mode.

    Lists of its parameters, which recurrent layers of torch keep, follow from these and are left out.
    """
    return {
        name: value
        for name, value in vars(module).items()
        if name not in ("_parameters", "_buffers", "_modules", "training")
        and not (type(module).__module__.startswith("torch.nn.") and _lists_tensors(value))
    }


def _lists_tensors(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, (Tensor, ReferenceType)) for one in value)


def call(module: nn.Module, w: dict[str, Tensor], *inputs: Any, **options: Any) -> Any:
    """Calls a module with other parameters: same as `torch.func.functional_call`, which looks for tied parameters each
    time, and takes longer than a small model.
    """
    if torch.compiler.is_compiling():
        return torch.func.functional_call(module, w, inputs, options)
    with set_parameters(module, w):
        return run_model(module, *inputs, **options)


def gradients(value: Tensor, parameters: Sequence[Tensor]) -> list[Tensor]:
    """Gradients of a 0-d value; 0 for parameters that it does not depend on.

    torch.autograd.grad examines its arguments for as long as small models compute. Without the private name, it is
    called.
    """
    if _run_backward is None or value.dim():
        return list(torch.autograd.grad(value, parameters, materialize_grads=True))
    found = _run_backward(
        (value,),
        (torch.ones_like(value),),
        False,
        False,
        tuple(parameters),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


_run_backward: Callable[..., Any] | None = getattr(torch.autograd.graph, "_engine_run_backward", None)


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
