"""Gradients of a loss of one client, or of many under vmap, without torch.func.grad.

torch.func always keeps the graph for outer gradients. Its first call in a process also imports torch's compiler, which
takes longer than importing torch.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.algorithms.core.torch_private import (
    HAS_GRADIENT_LEVELS,
    batched_memory,
    enter_level,
    gradient_level,
    gradients,
    hidden_again,
    leave_level,
    vmap_levels,
    whole_memory,
    without_transforms,
)
from hedgerow.algorithms.optim.batched_functions import BatchedFunctions


def gradient_and_value(loss: Callable[..., Any], differentiable: bool = False, aux: bool = False) -> Callable[..., Any]:
    """Same as torch.func.grad_and_value by the first argument, a tree: returns a function for (gradient, value).

    aux: the loss returns (value, a tree), and the tree is returned as a third entry.
    differentiable: the gradient can itself be differentiated by an outer gradient.

    torch.func.grad_and_value is used only while a step is compiled, or if the private names of torch are missing.
    Raises ValueError if the loss is not a 0-d tensor, or torch's own error.
    """
    if torch.compiler.is_compiling() or not HAS_GRADIENT_LEVELS:
        return _compilable(loss, aux)

    def both(w: Tree, *rest: Any) -> tuple[Any, ...]:
        if not differentiable and (levels := vmap_levels()) is not None:
            return _from_memory(loss, aux, w, levels, rest)
        # Same as torch's grad_and_value_impl, for a tree and one derivative.
        with gradient_level() as level, torch.enable_grad():
            inside = tree_map(lambda p: enter_level(p, level), w)
            value, *others = loss(inside, *rest) if aux else (loss(inside, *rest),)
            slopes = torch.autograd.grad(
                value, list(leaves(inside)), create_graph=differentiable, materialize_grads=True
            )
            gradients = iter(slopes)
            direction = tree_map(lambda p: leave_level(next(gradients), level), inside)
            leaving = [
                tree_map(lambda t: leave_level(t if differentiable else t.detach(), level), tree)
                for tree in (value, *others)
            ]
            return direction, *leaving

    return both


def _from_memory(
    loss: Callable[..., Any], aux: bool, w: Tree, levels: dict[int, int], rest: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Gradient, value and other results, by a graph of the memory that vmap hides.

    The gradient of the sum of all clients' losses contains that of each client, since each has its own parameters. The
    forward pass then goes through one transform less, and the backward pass through none.
    """
    memories = [whole_memory(leaf, levels) for leaf in leaves(w)]
    with without_transforms():
        memories = [memory.detach().requires_grad_() for memory in memories]
        # Layers may ask whether their parameters require a gradient.
        inside = iter([hidden_again(memory, levels).requires_grad_() for memory in memories])
    with torch.enable_grad(), BatchedFunctions() if levels else nullcontext():
        result = loss(tree_map(lambda _: next(inside), w), *rest)
    value, *others = result if aux else (result,)
    if value.dim():
        raise ValueError(f"the loss must be a 0-d tensor, but has shape {tuple(value.shape)}")
    total, _ = batched_memory(value)
    with without_transforms():
        slopes = iter(gradients(total.sum(), memories))
    direction = tree_map(lambda _: hidden_again(next(slopes), levels), w)
    return direction, *(tree_map(torch.Tensor.detach, tree) for tree in (value, *others))


def _compilable(loss: Callable[..., Any], aux: bool) -> Callable[..., Any]:
    plain = torch.func.grad_and_value(loss, has_aux=aux)
    if not aux:
        return plain

    def both(w: Tree, *rest: Any) -> tuple[Any, ...]:
        gradient, (value, others) = plain(w, *rest)
        return gradient, value, others

    return both
