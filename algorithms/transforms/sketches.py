"""Compressed vectors: representations of a message of d numbers, and their reconstruction (Comm-FedBiO, section 4).

A compressed message is a tree like any other, and its communication cost is the size of its content: the values and
indices of a sparse vector, the table of a sketch. Objects derived from a shared seed, such as hash functions, are not
transmitted: each client computes them (`Exchange.local_inputs`). All functions run under vmap.
"""

from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.transforms.sparse_vectors import top_k


class CountSketch(NamedTuple):
    """Tables of rows x columns of signed sums (Charikar, Chen, Farach-Colton, 2002) that preserve large entries.

    Linear: sketches with the same hash functions may be added.
    buckets, signs (rows, d): column and sign of each coordinate in each row.
    width: columns of a table.
    """

    buckets: Tensor
    signs: Tensor
    width: int

    @classmethod
    def draw(cls, d: int, rows: int, width: int, seed: int) -> Self:
        rng = np.random.default_rng([seed, 101])
        buckets = torch.from_numpy(rng.integers(0, width, (rows, d)))
        return cls(buckets, torch.from_numpy(rng.integers(0, 2, (rows, d)) * np.float32(2) - 1), width)

    @property
    def tree(self) -> Tree:
        return {"buckets": self.buckets, "signs": self.signs}

    def sketch(self, u: Tensor) -> Tensor:
        """Returns the table (rows, width) of u (d,)."""
        return u.new_zeros(len(self.buckets), self.width).scatter_add(1, self.buckets, self.signs.to(u.dtype) * u)

    def estimate(self, table: Tensor) -> Tensor:
        """Estimates every coordinate (d,): median over the rows. Dense estimates are no contraction: see `heavy`."""
        rows = (self.signs.to(table.dtype) * table.gather(1, self.buckets)).sort(0).values
        # torch.median returns the lower of the two middle values.
        return (rows[(len(rows) - 1) // 2] + rows[len(rows) // 2]) / 2

    def heavy(self, table: Tensor, k: int) -> Tree:
        """Returns the k largest estimates, in the format of `top_k`."""
        return top_k(self.estimate(table), k)


class SparseEmbedding(NamedTuple):
    """S (r, d) with one entry of +-1 per column, in a random row: E[S'S] = I (Comm-FedBiO, Corollary 3).

    rows, signs (d,): row and value of that entry.
    empty (r,): zeros.
    """

    rows: Tensor
    signs: Tensor
    empty: Tensor

    @classmethod
    def draw(cls, d: int, r: int, seed: int) -> Self:
        rng = np.random.default_rng([seed, 103])
        rows = torch.from_numpy(rng.integers(0, r, d))
        return cls(rows, torch.from_numpy(rng.integers(0, 2, d) * np.float32(2) - 1), torch.zeros(r))

    @property
    def tree(self) -> Tree:
        return self._asdict()

    @property
    def r(self) -> int:
        return len(self.empty)

    def apply(self, u: Tensor) -> Tensor:
        """S u: (d,) -> (r,)."""
        return self.empty.to(u.dtype).index_add(0, self.rows, self.signs.to(u.dtype) * u)

    def transposed(self, w: Tensor) -> Tensor:
        """S' w: (r,) -> (d,)."""
        return self.signs.to(w.dtype) * w.gather(0, self.rows)


class GaussianSketch(NamedTuple):
    """S (r, d) with entries ~ N(0, 1/r), stored as a dense matrix: for small problems."""

    matrix: Tensor

    @classmethod
    def draw(cls, d: int, r: int, seed: int) -> Self:
        rng = np.random.default_rng([seed, 107])
        return cls(torch.from_numpy(rng.normal(0, r**-0.5, (r, d))))

    @property
    def tree(self) -> Tree:
        return self._asdict()

    @property
    def r(self) -> int:
        return len(self.matrix)

    def apply(self, u: Tensor) -> Tensor:
        """S u: (d,) -> (r,)."""
        return self.matrix.to(u) @ u

    def transposed(self, w: Tensor) -> Tensor:
        """S' w: (r,) -> (d,)."""
        return self.matrix.to(w).T @ w


SKETCHES: dict[str, type[SparseEmbedding] | type[GaussianSketch]] = {
    "sparse": SparseEmbedding,
    "gaussian": GaussianSketch,
}
