"""The base class of aggregation rules."""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.hyperparameters import Settings
from hedgerow.algorithms.core.pytree import Tree


class Aggregator(Settings):
    """A rule that combines client updates into one. Its fields are its hyperparameters."""

    kind: str = Field("", description="aggregation rule: its name, or the dotted path of your own")

    is_mean: ClassVar[bool] = False
    """Whether the rule is the weighted mean, which workers sum locally; other rules receive every update."""

    uses_weights: ClassVar[bool] = True
    """Whether the rule uses client weights; if not, weights other than equal ones are refused."""

    def incompatibility(self, clients: int) -> str | None:
        """Returns why it cannot combine updates of that many clients: "FIELD: the reason; the fix". None if it can.

        A round in which it cannot combine the updates that remain after dropouts keeps the server's state.
        """
        return None

    def combine(self, updates: Tree, weights: Tensor) -> Tree:
        """Returns the aggregated update.

        updates: parts of the updates by name, leaves with a leading dimension of clients.
        weights: (clients,) float64.
        """
        raise NotImplementedError
