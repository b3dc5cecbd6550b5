"""Quantised updates (Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding", 2017;
here with uniform levels between the extremes of each leaf).
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.keyed_random import bits as random_bits
from hedgerow.algorithms.core.parts import Wire
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.transforms.transform import Transform

FULL = 32


class Quantize(Transform):
    """Rounds every entry to one of 2^bits uniform levels between the smallest and the largest entry of its leaf.

    Stochastic rounding goes up with the probability that makes the expectation the entry itself. A message has `bits`
    bits per entry and two numbers per leaf. 32 bits send updates as they are.
    """

    is_random = quantizes = True

    bits: int = Field(8, ge=1, le=FULL, description="bits per entry")
    stochastic: bool = Field(True, description="round at random, without bias; false: to the nearest level")

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        if self.bits == FULL:
            return update, state
        assert key is not None
        return self._rounded(update, key, [0]), state

    def _rounded(self, tree: Tree, key: Tensor, number: list[int]) -> Tree:
        result: Tree = {}
        for name, child in tree.items():
            if isinstance(child, dict):
                result[name] = self._rounded(child, key, number)
                continue
            number[0] += 1
            result[name] = self._leaf(child, key, number[0])
        return result

    def _leaf(self, leaf: Tensor, key: Tensor, number: int) -> Tensor:
        low, high = leaf.amin(), leaf.amax()
        # In float64, so that levels of up to 31 bits are exact.
        step = (high.double() - low) / (2**self.bits - 1)
        position = (leaf.double() - low) / torch.where(step > 0, step, 1.0)
        shift: float | Tensor = 0.5
        if self.stochastic:
            shift = (random_bits(key, leaf.numel(), number).double() / 2**32).view(leaf.shape)
        level = (position + shift).floor().clamp(0, 2**self.bits - 1)
        return (low + level * step).to(leaf.dtype)

    def wire(self, wire: Wire) -> Wire:
        if self.bits == FULL:
            return wire
        return wire._replace(value_bits=self.bits, scales=2 * wire.leaves)
