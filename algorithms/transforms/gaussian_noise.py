"""The Gaussian mechanism on the sum of the clients' updates (McMahan et al., "Learning Differentially Private Recurrent
Language Models", 2018).
"""

import torch
from pydantic import Field

from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.transforms.transform import Transform


class GaussianNoise(Transform):
    """The server adds N(0, (z S)^2) to every coordinate of the sum of the updates, whose norms a clip bounds by S.

    The sum is divided by the number of clients, or by the expected number if cohorts are random.
    """

    joint = True
    adds_server_noise = needs_bound = True

    multiplier: float = Field(ge=0, description="z, standard deviation of the noise on the sum, in units of S")
    expected: float | None = Field(
        None, gt=0, description="expected number of clients, by which the sum is divided; null: their actual number"
    )
    accumulate: bool = Field(
        False,
        description="also allow it with algorithms that add up client updates in the server state, such as FedDyn and "
        "SCAFFOLD, where the noise of all rounds adds up",
    )

    @property
    def expected_clients(self) -> float | None:
        return self.expected

    @property
    def may_accumulate(self) -> bool:
        return self.accumulate

    def server(
        self, update: Tree, state: Tree, like: Tree, key: int, clients: int, bound: float | None = None
    ) -> tuple[Tree, Tree]:
        assert bound is not None
        divisor = self.expected or clients
        generator = torch.Generator().manual_seed(key)
        std, factor = self.multiplier * bound / divisor, clients / divisor

        def noisy(mean: torch.Tensor) -> torch.Tensor:
            return factor * mean + std * torch.randn(mean.shape, generator=generator)

        return tree_map(noisy, update), state
