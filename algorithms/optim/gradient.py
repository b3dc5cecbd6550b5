"""Gradients of a loss of one client, or of many under vmap, without torch.func.grad.

torch.func always keeps the graph for outer gradients. Its first call in a process also imports torch's compiler, which
takes longer than importing torch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.algorithms.core.torch_private import (
    HAS_GRADIENT_LEVELS,
    batched_memory,
    enter_level,
    gradient_level,
    gradients,
    hide_dimensions,
    leave_level,
    vmap_levels,
    whole_memory,
    without_transforms,
)
from hedgerow.algorithms.optim.batched_functions import BatchedFunctions, TransformNeededError


def gradient_and_value(loss: Callable[..., Any], differentiable: bool = False, aux: bool = False) -> Callable[..., Any]:
    """Same as torch.func.grad_and_value by the first argument, a tree: returns a function for (gradient, value).

    aux: the loss returns (value, a tree), and the tree is returned as a third entry.
    differentiable: the gradient can itself be differentiated by an outer gradient.

    torch.func.grad_and_value is used only while a step is compiled, or if the private names of torch are missing.
    """
    if torch.compiler.is_compiling() or not HAS_GRADIENT_LEVELS:
        return _compilable(loss, aux)

    def both(w: Tree, *rest: Any) -> tuple[Any, ...]:
        levels = _direct.get()
        if levels and not differentiable and vmap_levels() == levels:
            return _directly(loss, aux, w, levels, rest)
        # Same as torch's grad_and_value_impl, for a tree and one derivative.
        with gradient_level() as level, torch.enable_grad():
            inside = tree_map(lambda p: enter_level(p, level), w)
            value, *others = loss(inside, *rest) if aux else (loss(inside, *rest),)
            parameters = list(leaves(inside))
            slopes = iter(torch.autograd.grad(value, parameters, create_graph=differentiable, materialize_grads=True))
            direction = tree_map(lambda p: leave_level(_dense(next(slopes)), level), inside)
            leaving = [
                tree_map(lambda t: leave_level(t if differentiable else t.detach(), level), tree)
                for tree in (value, *others)
            ]
            return direction, *leaving

    return both


def _dense(gradient: Tensor) -> Tensor:
    """Gradient without the layout of an embedding with `sparse`."""
    return gradient if gradient.layout is torch.strided else gradient.to_dense()


@contextmanager
def direct_gradients() -> Iterator[None]:
    """Context in which gradients under the current levels of vmap are computed on the tensors of all clients.

    The gradient of the sum of all clients' losses contains that of each client, since each has its own parameters. The
    forward pass then goes through one transform less, and the backward pass through none. A gradient within another one
    or under further levels of vmap is computed as outside the context. A loss raises TransformNeededError, or any other
    error, if it can only be differentiated outside of it.
    """
    token = _direct.set(vmap_levels())
    try:
        yield
    finally:
        _direct.reset(token)


_direct: ContextVar[dict[int, int] | None] = ContextVar("direct", default=None)


def _directly(loss: Callable[..., Any], aux: bool, w: Tree, levels: dict[int, int], rest: Any) -> tuple[Any, ...]:
    """Gradient, value and other results, from an autograd graph on the tensors of all clients."""
    memories = [whole_memory(leaf, levels) for leaf in leaves(w)]
    with torch.enable_grad():
        with without_transforms():
            memories = [memory.detach().requires_grad_() for memory in memories]
        inside = iter(memories)
        token = _direct.set(None)
        try:
            with BatchedFunctions(levels):
                result = loss(tree_map(lambda _: hide_dimensions(next(inside), levels), w), *rest)
        finally:
            _direct.reset(token)
        value, *others = result if aux else (result,)
        if value.dim():
            raise TransformNeededError("a loss that is not 0-d")
        total, _ = batched_memory(value)
        with without_transforms():
            slopes = iter(gradients(total.sum(), memories))
    direction = tree_map(lambda _: hide_dimensions(next(slopes), levels), w)
    return direction, *(tree_map(torch.Tensor.detach, tree) for tree in (value, *others))


def _compilable(loss: Callable[..., Any], aux: bool) -> Callable[..., Any]:
    plain = torch.func.grad_and_value(loss, has_aux=aux)
    if not aux:
        return plain

    def both(w: Tree, *rest: Any) -> tuple[Any, ...]:
        gradient, (value, others) = plain(w, *rest)
        return gradient, value, others

    return both
