"""Sparse updates (Stich et al., "Sparsified SGD with Memory", 2018)."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.parts import Wire
from hedgerow.algorithms.core.pytree import Tree, exceeds_size, flat, like, zeros_like
from hedgerow.algorithms.transforms.sparse_vectors import top_k
from hedgerow.algorithms.transforms.transform import Transform


class TopK(Transform):
    """Keeps the K entries of an update with the largest magnitudes; error feedback sends the others later."""

    sparsifies = True

    entries: int = Field(1000, ge=1, description="K, number of entries that a client sends, with their indices")
    error_feedback: bool = Field(True, description="add omitted entries to the next update; false: they are lost")

    @property
    def has_error_feedback(self) -> bool:
        return self.error_feedback

    @property
    def keeps_bound(self) -> bool:
        return not self.error_feedback

    def incompatibility(self, like: Tree) -> str | None:
        return exceeds_size(like, "entries", self.entries)

    def init_client(self, like: Tree) -> Tree:
        return {"residual": zeros_like(flat(like))} if self.error_feedback else {}

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        total = flat(update)
        if self.error_feedback:
            total = total + state["residual"]
        message = top_k(total, hp.entries)
        approximation = torch.zeros_like(total).scatter(0, message["indices"].long(), message["values"])
        return like(approximation, update), {"residual": total - approximation} if self.error_feedback else {}

    def wire(self, wire: Wire) -> Wire:
        """Size of the values, and of their indices as 32-bit integers, instead of those of earlier transforms."""
        return wire._replace(values=self.entries, others=self.entries, other_bits=32 * self.entries)
