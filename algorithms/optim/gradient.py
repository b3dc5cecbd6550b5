"""Derivatives of a loss under vmap, without the seconds that torch.func.grad takes to import torch's compiler."""

from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch._functorch.eager_transforms import (
    _create_differentiable,
    _undo_create_differentiable,
    _wrap_tensor_for_grad,
)

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map


def gradient_and_value(loss: Callable[..., Any], differentiable: bool = False, aux: bool = False) -> Callable[..., Any]:
    """As torch.func.grad_and_value by the first argument, a tree: (gradient, value).

    aux: the loss returns (value, a tree), and that tree is returned as a third. differentiable: the gradient, too, can
    be differentiated, by whoever takes a gradient around this one. torch.func always keeps the graph that this needs,
    and on its first call imports torch._dynamo, which takes longer than torch itself, in every process. While a step is
    compiled, it is the right tool.
    """
    if torch.compiler.is_compiling():
        return _compilable(loss, aux)

    def both(w: Tree, *rest: Any) -> tuple[Any, ...]:
        # What torch's own grad_and_value_impl does, for a tree and one derivative.
        with eager_transforms.grad_increment_nesting() as level, torch.enable_grad():
            inside = tree_map(lambda p: _create_differentiable(_wrap_tensor_for_grad(p, level), level), w)
            value, *others = loss(inside, *rest) if aux else (loss(inside, *rest),)
            slopes = torch.autograd.grad(
                value, list(leaves(inside)), create_graph=differentiable, materialize_grads=True
            )
            gradients = iter(slopes)
            direction = tree_map(lambda p: _undo_create_differentiable(next(gradients), level), inside)
            leaving = [
                tree_map(lambda t: _undo_create_differentiable(t if differentiable else t.detach(), level), tree)
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
