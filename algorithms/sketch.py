"""Gaussian sketches that need not be stored: rows are made from a seed, block by block, whenever they are needed."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

BLOCK = 256
"""Rows that are made at a time."""

STORED = 2**30
"""Bytes up to which a sketch is made once and kept."""


class GaussianRows:
    """S (p, d) with entries ~ N(0, 1/d): the same for everybody who knows the seed, stored or not."""

    def __init__(self, p: int, d: int, seed: int, stored: int = STORED):
        self.p, self.d, self.seed, self.stored = p, d, seed, 4 * p * d <= stored

    def apply(self, u: Tensor) -> Tensor:
        """S u: (d,) -> (p,)."""
        return torch.cat([self._block(i).to(u) @ u for i in self._blocks])

    def transposed(self, w: Tensor) -> Tensor:
        """S' w: (p,) -> (d,)."""
        pieces = zip(self._blocks, w.split(BLOCK), strict=True)
        return torch.stack([piece @ self._block(i).to(w) for i, piece in pieces]).sum(0)

    def solve(self, b: Tensor, active: Tensor | None = None, ridge: float = 0.0) -> Tensor:
        """(S A S' + ridge I)^-1 b with A = diag(active), None: I; the least-norm solution where it is singular. (p,)"""
        rows = torch.cat([self._block(i) for i in self._blocks]).to(b)
        some = rows if active is None else rows * active
        gram = some @ some.T
        if active is not None and not ridge:
            return torch.linalg.pinv(gram, hermitian=True) @ b
        return torch.linalg.solve(gram + ridge * torch.eye(self.p, dtype=b.dtype, device=b.device), b)

    @cached_property
    def squared_norm(self) -> float:
        """||S||^2, of the largest singular value, by power iterations."""
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
