"""Gaussian noise that every client adds to its own update."""

from typing import Any

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.keyed_random import gaussian
from hedgerow.algorithms.core.pytree import Tree, flat
from hedgerow.algorithms.core.pytree import like as shaped
from hedgerow.algorithms.transforms.transform import Transform


class LocalNoise(Transform):
    """Adds N(0, std^2) to every coordinate of an update, after a clip."""

    is_random = needs_bound = True

    std: float = Field(ge=0, description="standard deviation of the noise")

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        assert key is not None
        u = flat(update)
        return shaped(u + hp.std * gaussian(key, len(u)), update), state
