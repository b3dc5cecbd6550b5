"""Operations on lists of tensors in the memory of the first list, also under vmap, where torch's own take a slow path.

They save the memory of a result in every local step. Under vmap, where torch's private names are missing, or a tensor
does not have all dimensions of vmap that the result has, the result is new, with equal numbers.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from hedgerow.algorithms.core.torch_private import (
    batched_memory,
    foreach_add_,
    foreach_lerp_,
    foreach_mul_,
    foreach_norm,
    is_transformed,
)


def is_plain() -> bool:
    """Whether tensors are those of one client, whose values can be read."""
    return not torch.compiler.is_compiling() and not is_transformed()


def _is_on_gpu(scale: Any) -> bool:
    """Whether a factor is a tensor that only a GPU can read, since reading it here would wait."""
    return isinstance(scale, Tensor) and scale.is_cuda


def add_(a: list[Tensor], b: Sequence[Tensor], scale: Any = 1.0) -> list[Tensor]:
    """a + scale * b. scale: a number or a 0-d tensor."""
    if is_plain() and not _is_on_gpu(scale):
        foreach_add_(a, b, alpha=scale)
        return a
    if isinstance(scale, Tensor):
        return [_changed("addcmul", x, y, scale) for x, y in zip(a, b, strict=True)]
    return [_changed("add", x, y, alpha=scale) for x, y in zip(a, b, strict=True)]


def plus(a: list[Tensor], b: Sequence[Tensor], scale: Any) -> list[Tensor]:
    """a + scale * b of one client, in new memory. scale: a number or a 0-d tensor."""
    if _is_on_gpu(scale):
        return [torch.addcmul(x, y, scale, out=torch.empty_like(x)) for x, y in zip(a, b, strict=True)]
    return [torch.add(x, y, alpha=scale, out=torch.empty_like(x)) for x, y in zip(a, b, strict=True)]


def pull_(a: list[Tensor], b: Sequence[Tensor], c: Sequence[Tensor], scale: Any) -> list[Tensor]:
    """a + scale * (b - c)."""
    if is_plain():
        # Two additions: the difference would allocate memory in every step.
        return add_(add_(a, b, scale), c, -scale)
    return add_(a, [x - y for x, y in zip(b, c, strict=True)], scale)


def accumulate_(a: list[Tensor], factor: Any, b: list[Tensor]) -> list[Tensor]:
    """factor * a + b, under vmap in the memory of b."""
    return add_(mul_(a, factor), b) if is_plain() else add_(b, a, factor)


def mul_(a: list[Tensor], factor: Any) -> list[Tensor]:
    """factor * a. factor: a number or a 0-d tensor."""
    if is_plain():
        foreach_mul_(a, factor)
        return a
    return [_changed("mul", x, factor) for x in a]


def lerp_(a: list[Tensor], b: Sequence[Tensor], weight: Any) -> list[Tensor]:
    """a + weight (b - a). weight: a number or a 0-d tensor."""
    if is_plain() and not _is_on_gpu(weight):
        foreach_lerp_(a, b, weight)
        return a
    return [_changed("lerp", x, y, weight) for x, y in zip(a, b, strict=True)]


def norms(a: list[Tensor]) -> Sequence[Tensor]:
    """Norm of each tensor, 0-d."""
    return foreach_norm(a) if is_plain() else [x.norm() for x in a]  # type: ignore[no-any-return]


def apart(gradients: Iterable[Tensor]) -> list[Tensor]:
    """Gradients that can be changed in place: none of them shares memory with another one or with itself.

    The gradients of two parameters that the model adds are one tensor, and that of a sum repeats one number. The
    backward function of a user must not return a tensor that it keeps.
    """
    if torch.compiler.is_compiling():
        # Nothing is then changed in place.
        return list(gradients)
    storages: set[int] = set()
    result = []
    for gradient in gradients:
        if gradient.layout is not torch.strided:
            # Of an embedding with `sparse`: other terms of a direction are dense.
            result.append(gradient.to_dense())
            continue
        memory, _ = batched_memory(gradient)
        storage = memory.untyped_storage().data_ptr()
        is_apart = storage not in storages and 0 not in memory.stride()
        storages.add(storage)
        result.append(gradient if is_apart else gradient.clone(memory_format=torch.contiguous_format))
    return result


def _changed(name: str, a: Tensor, *others: Any, **options: Any) -> Tensor:
    """Result of an operation of tensors and numbers, in the memory of `a` if possible."""
    if not torch.compiler.is_compiling():
        memory, levels = batched_memory(a)
        aligned = [_aligned(other, levels, memory) if isinstance(other, Tensor) else other for other in others]
        if all(other is not None for other in aligned):
            getattr(memory, f"{name}_")(*aligned, **options)
            return a
    return getattr(a, name)(*others, **options)


def _aligned(tensor: Tensor, levels: list[int], to: Tensor) -> Tensor | None:
    """Memory of a tensor under vmap, broadcast against memory with these levels of vmap; None if the tensor has another
    level, or numbers of another type.
    """
    memory, own = batched_memory(tensor)
    if not set(own) <= set(levels) or (memory.dim() and memory.dtype != to.dtype):
        return None
    if not own or (own == levels and memory.dim() == to.dim()):
        return memory
    sizes = iter(memory.shape)
    batch = [next(sizes) if level in own else 1 for level in levels]
    rest = list(sizes)
    return memory.reshape(*batch, *[1] * (to.dim() - len(levels) - len(rest)), *rest)
