"""The offline competitor (thesis, Eq. 5.4), to which regret refers: it knows all tasks from the start."""

from pydantic import Field

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online, OnlineSGD


class Offline(Online):
    """K steps a round on the mean of the F of all tasks of the stream, also of those that are still to come."""

    class Hyper(OnlineSGD):
        weight_decay: float = Field(0.0, ge=0, description="L2 penalty, added to the direction after clipping")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self.learn(server, cohort, range(cohort.population))
        return result.up

    def kept(self, server: Tree, cohort: Cohort) -> int:
        return cohort.population
