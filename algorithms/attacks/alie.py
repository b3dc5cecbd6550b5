"""A Little Is Enough."""

from statistics import NormalDist

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.aggregators.stacks import by_coordinate
from hedgerow.algorithms.attacks.attack import Attack
from hedgerow.algorithms.core.pytree import Tree, tree_map


def largest_deviation(clients: int, attackers: int) -> float:
    """z_max of Baruch et al., at least 0: how many standard deviations attackers may deviate and have a majority."""
    honest = clients - attackers
    supporters = max(clients // 2 + 1 - attackers, 1)
    return NormalDist().inv_cdf(max((honest - supporters) / honest, 0.5))


class ALittleIsEnough(Attack):
    """All attackers send mean - z std of the honest updates of the round, by coordinate (ALIE; Baruch et al., 2019).

    They know the honest updates as the server receives them, after the transforms. In a round without honest clients
    the updates stay as they are.
    """

    colludes = True

    z: float | None = Field(
        None, ge=0, description="number of standard deviations; null: z_max of the paper, from the clients of the round"
    )

    def collude(self, updates: Tree, mask: np.ndarray) -> Tree:
        if mask.all() or not mask.any():
            return updates
        honest = torch.from_numpy(~mask)
        z = largest_deviation(len(mask), int(mask.sum())) if self.z is None else self.z

        def common(piece: Tensor) -> Tensor:
            known = piece[honest].double()
            return known.mean(0) - z * known.std(0, correction=0)

        def replaced(leaf: Tensor, forged: Tensor) -> Tensor:
            # In place: the stack may take most of the memory.
            leaf[~honest] = forged
            return leaf

        return tree_map(replaced, updates, by_coordinate(updates, common))
