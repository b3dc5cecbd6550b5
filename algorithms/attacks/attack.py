"""The base class of attacks, and the clients that attack."""

from functools import lru_cache
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.pytree import Tree


@lru_cache(maxsize=8)
def attackers(seed: int, population: int, fraction: float) -> np.ndarray:
    """Mask (population,) of the clients that attack in every round: round(fraction * population) of them."""
    mask = np.zeros(population, bool)
    order = np.random.default_rng([seed, crc32(b"attackers")]).permutation(population)
    mask[order[: round(fraction * population)]] = True
    mask.flags.writeable = False
    return mask


class Attack(Settings):
    """Behaviour of a fixed part of the clients, in place of the algorithm's step. Its fields are its hyperparameters.

    An update is a tree of all parts of a client step's result that slots may change, by name: for values, the
    difference from what the client received. Attacks come before the transforms, so that what attackers send has the
    same form as what the others send.
    """

    kind: str = Field("", description="attack: its name, or the dotted path of your own")
    fraction: float = Field(0.2, ge=0, le=1, description="fraction of the population that attacks, in every round")

    flips_labels: ClassVar[bool] = False
    """Whether attackers train on flipped labels: classes - 1 - y instead of y."""

    is_random: ClassVar[bool] = False
    """Whether `client` draws random numbers from `key`."""

    colludes: ClassVar[bool] = False
    """Whether attackers know all updates of a round: the server collects them, and `collude` changes them."""

    def client(self, hp: Any, update: Tree, key: Tensor | None) -> Tree:
        """Returns what an attacker sends instead of its update. It runs in a loop and under torch.func.vmap.

        hp: this attack's hyperparameters, floats as numbers or 0-d tensors.
        key: if `is_random`, 64 bits (see `keyed_random`) that depend on seed, round, exchange and client only; else
        None.
        """
        return update

    def collude(self, updates: Tree, mask: np.ndarray) -> Tree:
        """Returns the updates that the server receives. It may change them in place.

        updates: leaves (clients, ...), after the client part of the transforms.
        mask: (clients,) whether a client attacks.
        """
        return updates
