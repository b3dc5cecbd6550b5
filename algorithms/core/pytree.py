"""Trees: nested dictionaries of tensors, the only data structure that algorithms exchange."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]
"""A nested dictionary whose leaves are tensors: `{"w": {"fc.weight": ..., "fc.bias": ...}}`."""


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Applies `function` leaf by leaf to trees of the same shape."""
    if not isinstance(tree, dict):
        return function(tree, *rest)
    if rest:
        return {key: tree_map(function, tree[key], *(other[key] for other in rest)) for key in tree}
    # The most frequent case, without a call per leaf.
    return {
        key: tree_map(function, child) if isinstance(child, dict) else function(child) for key, child in tree.items()
    }


def stack(*trees: Any) -> Any:
    """Stacks trees of the same shape along a new first dimension; returns a view if there is only one."""
    return tree_map(lambda *parts: torch.stack(parts) if len(parts) > 1 else parts[0][None], *trees)


def unstack(tree: Any) -> list[Any]:
    """Splits a stacked tree along its first dimension."""
    return [tree_map(lambda leaf, i=i: leaf[i], tree) for i in range(len(next(leaves(tree))))] if tree else []


def leaves(tree: Any) -> Iterator[Any]:
    """Yields the leaves of a tree, in the order of its keys."""
    if not isinstance(tree, dict):
        yield tree
        return
    for child in tree.values():
        # The most frequent case, without a generator per leaf.
        if isinstance(child, dict):
            yield from leaves(child)
        else:
            yield child


def flatten(tree: Tree, prefix: str = "") -> dict[str, Any]:
    """Returns a flat dictionary with keys joined by '/', in which '~1' is a '/' of a key and '~0' a '~' (RFC 6901).

    Empty branches vanish.
    """
    flat: dict[str, Any] = {}
    for key, child in tree.items():
        path = prefix + key.replace("~", "~0").replace("/", "~1")
        flat.update(flatten(child, f"{path}/") if isinstance(child, dict) else {path: child})
    return flat


def difference(wanted: Tree, found: Tree) -> str | None:
    """First difference between two trees, as the predicate of a sentence that ends with the name of `wanted`, or None.

    `found` may have more entries than `wanted`, and other shapes of its empty ones.
    """
    mine, theirs = flatten(wanted), flatten(found)
    for path, leaf in mine.items():
        if path not in theirs:
            return f"has no {path!r}, which is in"
        if leaf.numel() and theirs[path].shape != leaf.shape:
            return f"has {path!r} of shape {tuple(theirs[path].shape)}, not {tuple(leaf.shape)} as in"
        if theirs[path].dtype != leaf.dtype:
            return f"has {path!r} of type {theirs[path].dtype}, not {leaf.dtype} as in"
    return None


def unflatten(flat: dict[str, Any]) -> Tree:
    """Inverse of `flatten`."""
    tree: Tree = {}
    for path, leaf in flat.items():
        *branches, last = (key.replace("~1", "/").replace("~0", "~") for key in path.split("/"))
        node = tree
        for branch in branches:
            node = node.setdefault(branch, {})
        node[last] = leaf
    return tree


def shapes_of(tree: Any) -> Any:
    """Shapes of a tree's leaves, by key; 0 if there is no tree."""
    return tree_map(lambda leaf: getattr(leaf, "shape", 0), tree)


def count(tree: Any) -> int:
    """Number of scalars in a tree."""
    return sum(leaf.numel() if isinstance(leaf, Tensor) else leaf.size for leaf in leaves(tree))


def exceeds_size(tree: Any, key: str, number: int) -> str | None:
    """Returns an error message if a setting that counts parameters of `tree` is too large, else None."""
    d = count(tree)
    return None if number <= d else f"{key}: {number} is more than the model's {d} parameters; lower it"


def zeros_like(tree: Any) -> Any:
    return tree_map(torch.zeros_like, tree)


def add(a: Any, b: Any, scale: Any = 1.0) -> Any:
    """Computes a + scale * b, in one pass over memory."""
    if isinstance(scale, Tensor):
        return tree_map(lambda x, y: torch.addcmul(x, y, scale), a, b)
    return tree_map(lambda x, y: torch.add(x, y, alpha=scale), a, b)


def scale(a: Any, factor: Any) -> Any:
    return tree_map(lambda x: factor * x, a)


def sub(a: Any, b: Any) -> Any:
    return tree_map(torch.sub, a, b)


def lerp(a: Any, b: Any, weight: Tensor) -> Any:
    """Computes a + weight (b - a)."""
    return tree_map(lambda x, y: torch.lerp(x, y, weight), a, b)


def dot(a: Any, b: Any) -> Tensor:
    """Inner product of two trees of the same shape; 0-d."""
    return torch.stack([(x * y).sum() for x, y in zip(leaves(a), leaves(b), strict=True)]).sum()


def flat(tree: Tree) -> Tensor:
    """Concatenates the flattened leaves: (d,)."""
    return torch.cat([leaf.reshape(-1) for leaf in leaves(tree)])


def like(vector: Tensor, tree: Tree) -> Any:
    """Inverse of `flat`: splits a vector into the shape of a tree."""
    pieces = iter(vector.split([leaf.numel() for leaf in leaves(tree)]))
    return tree_map(lambda leaf: next(pieces).reshape(leaf.shape), tree)
