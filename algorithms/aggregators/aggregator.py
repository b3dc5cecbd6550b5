"""The base class of aggregation rules."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.pytree import Tree


class Aggregator(Settings):
    """A rule that combines the clients' updates into one. Its fields are its hyperparameters."""

    kind: str = Field("", description="which rule: its name, or the dotted path of your own")

    is_mean: ClassVar[bool] = False
    """Whether it is the weighted mean, which is summed where the clients are; other rules receive every update."""

    def incompatibility(self, clients: int) -> str | None:
        """Why it cannot combine the updates of so many clients: "FIELD: the reason; the fix". None: it can."""
        return None

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        """The aggregated update.

        updates: the parts of an answer by name, leaves with a leading dimension of clients. weights (clients,) float64.
        """
        raise NotImplementedError
