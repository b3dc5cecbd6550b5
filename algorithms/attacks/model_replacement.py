"""Model replacement."""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.attacks.attack import Attack
from hedgerow.algorithms.core.pytree import Tree, scale


class ModelReplacement(Attack):
    """Attackers train on the labels classes - 1 - y and send boost times their update (Bagdasaryan et al., 2020).

    With one attacker in a round of n equally weighted clients near convergence, boost = n replaces the mean by the
    attacker's model.
    """

    flips_labels = True

    boost: float = Field(10.0, gt=0, description="factor on the update")

    def client(self, hp: Any, update: Tree, key: Tensor | None) -> Tree:
        return scale(update, hp.boost)
