"""Passes over stacked updates in pieces of coordinates, so that a rule needs little memory besides the stack."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree, leaves, tree_map

PIECE = 2**20
"""Numbers of a stack that are processed at a time: 8 MB in float64."""


def by_coordinate(updates: Tree, function: Callable[[Tensor], Tensor]) -> Tree:
    """Aggregates each coordinate on its own. function: (clients, coordinates) -> (coordinates,)."""

    def combined(leaf: Tensor) -> Tensor:
        result = leaf.new_empty(leaf.shape[1:])
        flat = result.view(-1)
        for start, piece in _pieces(leaf):
            flat[start : start + piece.shape[1]] = function(piece)
        return result

    return tree_map(combined, updates)


def weighted_sum(updates: Tree, coefficients: Tensor) -> Tree:
    """Sum of the updates with these coefficients, (clients,) float64, in float64. Updates with coefficient 0 do not
    count.
    """
    rows = coefficients.nonzero()[:, 0]
    factors = coefficients[rows]

    def total(piece: Tensor) -> Tensor:
        used = piece if len(rows) == len(piece) else piece[rows]
        return factors @ used.double()

    return by_coordinate(updates, total)


def squared_distances(updates: Tree, origin: bool = False) -> Tensor:
    """Squared Euclidean distances between updates over all leaves together, (clients, clients) float64.

    origin: whether the zero update counts as an additional, last one.
    """
    points = len(next(leaves(updates))) + origin
    products = torch.zeros(points, points, dtype=torch.float64)
    for leaf in leaves(updates):
        for _, piece in _pieces(leaf):
            # Distances do not depend on the centre, and small vectors lose fewer digits.
            widened = piece.double()
            centre = widened.mean(0)
            widened -= centre
            widened = torch.cat([widened, -centre[None]]) if origin else widened
            products += widened @ widened.T
    squares = products.diagonal()
    return (squares[:, None] + squares - 2 * products).clamp(min=0).fill_diagonal_(0)


def distances_to(coefficients: Tensor, squares: Tensor) -> Tensor:
    """Distances of points to their weighted mean. coefficients: of sum 1; squares: their squared distances."""
    products = squares @ coefficients
    return (products - coefficients @ products / 2).clamp(min=0).sqrt()


def sorted_columns(piece: Tensor) -> np.ndarray:
    """Sorts the numbers of each coordinate. NumPy is six times faster at it than torch."""
    return np.sort(piece.numpy(force=True), axis=0)


def _pieces(leaf: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yields pieces of a stacked leaf, (clients, coordinates), each with the number of its first coordinate."""
    rows = leaf.reshape(len(leaf), -1)
    size = max(1, PIECE // max(1, len(leaf)))
    for start in range(0, rows.shape[1], size):
        yield start, rows[:, start : start + size]
