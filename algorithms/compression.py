"""Compressed vectors: what a message of d numbers may be replaced by, and what comes back (Comm-FedBiO, section 2.4).

A compressed message is a tree like any other, and the ledger charges what it holds: of a sparse vector the values and
their indices, of a sketch its table. Seeds are not sent: who knows the experiment's knows them. All runs under vmap.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.trees import Tree


def top_k(u: Tensor, k: int) -> Tree:
    """The k entries of u (d,) with the largest magnitudes: {"values": (k,), "indices": (k,) int32}.

    What it leaves out is at most a share 1 - k/d of the squared norm.
    """
    indices = u.abs().topk(k).indices
    return {"values": u.gather(0, indices), "indices": indices.int()}


def random_k(u: Tensor, k: int, seed: int) -> Tree:
    """k entries of u (d,) that the seed chooses, without replacement: {"values": (k,)}."""
    return {"values": u.index_select(0, _chosen(len(u), k, seed))}


def dense(message: Tree, d: int, seed: int | None = None) -> Tensor:
    """The vector (d,) that a message of `top_k`, or, with its seed, of `random_k` stands for; 0 elsewhere."""
    values = message["values"]
    indices = _chosen(d, len(values), seed) if seed is not None else message["indices"].long()
    return values.new_zeros(d).index_add(0, indices, values)


def _chosen(d: int, k: int, seed: int) -> Tensor:
    return torch.from_numpy(np.sort(np.random.default_rng([seed, 97]).choice(d, k, replace=False)))


@dataclass(frozen=True)
class CountSketch:
    """A table of rows x columns of signed sums (Charikar, Chen, Farach-Colton, 2002), in which large entries show.

    Linear: sketches with the same seed may be added. d: of the vectors.
    """

    d: int
    rows: int
    columns: int
    seed: int

    @cached_property
    def _hashes(self) -> tuple[Tensor, Tensor]:
        """For each row and coordinate, (rows, d): its column, and its sign."""
        rng = np.random.default_rng([self.seed, 101])
        columns = torch.from_numpy(rng.integers(0, self.columns, (self.rows, self.d)))
        return columns, torch.from_numpy(rng.integers(0, 2, (self.rows, self.d)) * 2.0 - 1.0)

    def sketch(self, u: Tensor) -> Tensor:
        """The table (rows, columns) of u (d,)."""
        columns, signs = (t.to(u.device) for t in self._hashes)
        return u.new_zeros(self.rows, self.columns).scatter_add(1, columns, signs.to(u.dtype) * u)

    def estimate(self, table: Tensor) -> Tensor:
        """Every coordinate's estimate (d,): the median over the rows. Dense, it is no contraction: see `heavy`."""
        columns, signs = (t.to(table.device) for t in self._hashes)
        return (signs.to(table.dtype) * table.gather(1, columns)).median(0).values

    def heavy(self, table: Tensor, k: int) -> Tensor:
        """The k largest estimates (d,), 0 elsewhere."""
        return dense(top_k(self.estimate(table), k), self.d)


@dataclass(frozen=True)
class SparseEmbedding:
    """S (r, d) with one entry of +-1 per column, in a random row: E[S'S] = I (Comm-FedBiO, Corollary 3)."""

    d: int
    r: int
    seed: int

    @cached_property
    def _hashes(self) -> tuple[Tensor, Tensor]:
        rng = np.random.default_rng([self.seed, 103])
        rows = torch.from_numpy(rng.integers(0, self.r, self.d))
        return rows, torch.from_numpy(rng.integers(0, 2, self.d) * 2.0 - 1.0)

    def apply(self, u: Tensor) -> Tensor:
        """S u: (d,) -> (r,)."""
        rows, signs = (t.to(u.device) for t in self._hashes)
        return u.new_zeros(self.r).index_add(0, rows, signs.to(u.dtype) * u)

    def transposed(self, w: Tensor) -> Tensor:
        """S' w: (r,) -> (d,)."""
        rows, signs = (t.to(w.device) for t in self._hashes)
        return signs.to(w.dtype) * w.gather(0, rows)


@dataclass(frozen=True)
class GaussianSketch:
    """S (r, d) with entries ~ N(0, 1/r), held as a matrix: for small problems."""

    d: int
    r: int
    seed: int

    @cached_property
    def matrix(self) -> Tensor:
        rng = np.random.default_rng([self.seed, 107])
        return torch.from_numpy(rng.normal(0, self.r**-0.5, (self.r, self.d)))

    def apply(self, u: Tensor) -> Tensor:
        """S u: (d,) -> (r,)."""
        return self.matrix.to(u) @ u

    def transposed(self, w: Tensor) -> Tensor:
        """S' w: (r,) -> (d,)."""
        return self.matrix.to(w).T @ w
