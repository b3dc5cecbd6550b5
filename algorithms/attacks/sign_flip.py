"""Sign flipping."""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.attacks.attack import Attack
from hedgerow.algorithms.core.pytree import Tree, scale


class SignFlip(Attack):
    """Attackers send -scale times their update (Li et al., 2019)."""

    scale: float = Field(1.0, gt=0, description="factor on the reversed update")

    def client(self, hp: Any, update: Tree, key: Tensor | None) -> Tree:
        return scale(update, -hp.scale)
