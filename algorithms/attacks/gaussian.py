"""Gaussian updates."""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.attacks.attack import Attack
from hedgerow.algorithms.core.keyed_random import gaussian
from hedgerow.algorithms.core.pytree import Tree, count, like, scale


class Gaussian(Attack):
    """Attackers send independent random numbers from N(0, std^2) instead of their update (Blanchard et al., 2017)."""

    is_random = True

    std: float = Field(1.0, gt=0, description="standard deviation of each number")

    def client(self, hp: Any, update: Tree, key: Tensor | None) -> Tree:
        assert key is not None
        noise: Tree = like(gaussian(key, count(update)), update)
        return scale(noise, hp.std)
