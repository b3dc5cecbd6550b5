"""Gaussian sketches that need not be stored: rows are generated from a seed, block by block, on demand."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hedgerow.algorithms.core.keyed_random import STRIDE, box_muller, scattered

BLOCK = 256
"""Rows that are generated at a time."""


STORED = 2**30
"""Maximum size in bytes of a sketch that is generated once and kept in memory."""


PIECE = 2**16
"""Entries that are hashed at a time, so that intermediate results stay in the cache."""


class GaussianRows:
    """S (p, d) with entries ~ N(0, 1/d): identical in every process that knows the seed, stored or not."""

    def __init__(self, p: int, d: int, seed: Any, stored: int = STORED):
        self.p, self.d, self.seed, self.stored = p, d, seed, 4 * p * d <= stored

    def apply(self, u: Tensor) -> Tensor:
        """S u: (d,) -> (p,)."""
        return torch.cat([self._block(i).to(u) @ u for i in self._blocks])

    def transposed(self, w: Tensor) -> Tensor:
        """S' w: (p,) -> (d,)."""
        pieces = zip(self._blocks, w.split(BLOCK), strict=True)
        return torch.stack([piece @ self._block(i).to(w) for i, piece in pieces]).sum(0)

    def solve(self, b: Tensor, active: Tensor | None = None, ridge: float = 0.0) -> Tensor:
        """(S A S' + ridge I)^-1 b, (p,), with A = diag(active) or I; the least-norm solution if it is singular."""
        rows = torch.cat([self._block(i) for i in self._blocks]).to(b)
        active_rows = rows if active is None else rows * active
        gram = active_rows @ active_rows.T
        if active is not None and not ridge:
            return torch.linalg.pinv(gram, hermitian=True) @ b
        return torch.linalg.solve(gram + ridge * torch.eye(self.p, dtype=b.dtype, device=b.device), b)

    @cached_property
    def squared_norm(self) -> float:
        """||S||^2, the square of the largest singular value, by power iterations."""
        u = torch.ones(self.d)
        size = torch.ones(())
        for _ in range(30):
            u = self.transposed(self.apply(u / u.norm()))
            size = u.norm()
        return float(size)

    @property
    def _blocks(self) -> range:
        return range(-(-self.p // BLOCK))

    def _block(self, number: int) -> Tensor:
        return self._kept[number] if self.stored else self._make(number)

    @cached_property
    def _kept(self) -> list[Tensor]:
        return [self._make(number) for number in self._blocks]

    def _make(self, number: int) -> Tensor:
        rows = min(BLOCK, self.p - number * BLOCK)
        rng = np.random.default_rng([self.seed, 109, number])
        return torch.from_numpy(rng.standard_normal((rows, self.d), np.float32)) / self.d**0.5


class HashedRows(GaussianRows):
    """GaussianRows whose seed is a tensor (0-d, int64), such as one per client, and which also work under vmap: a
    generator cannot run there, so a counter-based hash generates the entries.
    """

    def _make(self, number: int) -> Tensor:
        rows = min(BLOCK, self.p - number * BLOCK)
        start = number * BLOCK * self.d
        return torch.cat(
            [self._entries(start + i, min(PIECE, rows * self.d - i)) for i in range(0, rows * self.d, PIECE)]
        ).view(rows, self.d)

    def _entries(self, start: int, size: int) -> Tensor:
        """Generates `size` entries from index `start`, counted row by row."""
        at = torch.arange(start, start + size, device=self.seed.device)
        first = scattered(scattered(at) ^ scattered(self.seed))
        return box_muller(first, scattered(first ^ STRIDE), self.d)
