"""Offline competitor (thesis, Eq. 5.4), the reference for regret: it knows all tasks from the start."""

from pydantic import Field

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online, OnlineSGD


class Offline(Online):
    """Takes K steps per round on the mean of F over all tasks of the stream, including future ones [Acar2023]."""

    class Hyper(OnlineSGD):
        weight_decay: float = Field(0.0, ge=0, description="L2 penalty, added to the direction after clipping")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self.learn(server, cohort, range(cohort.population))
        return result.up

    def kept(self, server: Tree, cohort: Cohort) -> int:
        return cohort.population
