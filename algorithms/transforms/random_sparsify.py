"""Random sparse updates (Konecny et al., "Federated Learning: Strategies for Improving Communication Efficiency",
2016).
"""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.keyed_random import bits
from hedgerow.algorithms.core.parts import Wire
from hedgerow.algorithms.core.pytree import Tree, exceeds_size, flat
from hedgerow.algorithms.core.pytree import like as shaped
from hedgerow.algorithms.transforms.transform import Transform

SEED_BITS = 64


class RandomK(Transform):
    """Keeps K random entries of an update, different ones for each client and round, times d / K: the expectation is
    the update. A message has the values and the seed of the indices.
    """

    is_random = sparsifies = True

    entries: int = Field(1000, ge=1, description="K, number of entries that a client sends")
    unbiased: bool = Field(True, description="scale the entries by d / K; false: send them as they are")

    @property
    def keeps_bound(self) -> bool:
        return not self.unbiased

    def incompatibility(self, like: Tree) -> str | None:
        return exceeds_size(like, "entries", self.entries)

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        assert key is not None
        u = flat(update)
        # Ties have probability d^2 / 2^33; topk then still chooses K entries.
        indices = bits(key, len(u)).topk(self.entries, sorted=False).indices
        mask = torch.zeros_like(u).scatter(0, indices, len(u) / self.entries if self.unbiased else 1.0)
        return shaped(u * mask, update), state

    def wire(self, wire: Wire) -> Wire:
        """Size of the values and of the seed, instead of that of earlier transforms."""
        return wire._replace(values=self.entries, others=1, other_bits=SEED_BITS)
