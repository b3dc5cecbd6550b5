"""MOGD: meta online gradient descent (thesis, 5.3): K steps on the task of the round; no task is kept."""

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online


class MOGD(Online):
    """Takes K steps on the task of the round [Acar2023].

    With `adapt: none`, one step and `batch_size: null` it is OGD (online gradient descent).
    """

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self.learn(server, cohort)
        return result.up
