"""Gradients of a loss under vmap, without torch.func.grad, which takes seconds to import torch's compiler."""

from collections.abc import Callable
from typing import Any

import torch

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map
from hedgerow.algorithms.core.torch_private import HAS_GRADIENT_LEVELS, enter_level, gradient_level, leave_level


def gradient_and_value(loss: Callable[..., Any], differentiable: bool = False, aux: bool = False) -> Callable[..., Any]:
    """Same as torch.func.grad_and_value by the first argument, a tree: returns a function for (gradient, value).

    aux: the loss returns (value, a tree), and the tree is returned as a third entry.
    differentiable: the gradient can itself be differentiated by an outer gradient.

    torch.func always keeps the graph for outer gradients. Its first call in a process also imports torch's compiler,
    which takes longer than importing torch. torch.func.grad_and_value is therefore used only while a step is compiled,
    or if the private names of torch are missing.
    """
    if torch.compiler.is_compiling() or not HAS_GRADIENT_LEVELS:
        return _compilable(loss, aux)

    def both(w: Tree, *rest: Any) -> tuple[Any, ...]:
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


def _compilable(loss: Callable[..., Any], aux: bool) -> Callable[..., Any]:
    plain = torch.func.grad_and_value(loss, has_aux=aux)
    if not aux:
        return plain

    def both(w: Tree, *rest: Any) -> tuple[Any, ...]:
        gradient, (value, others) = plain(w, *rest)
        return gradient, value, others

    return both
