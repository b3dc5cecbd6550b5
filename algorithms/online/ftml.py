"""FTML: follow the meta leader (Finn et al., 2019): every task is kept and trained on repeatedly."""

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online


class FTML(Online):
    """Takes K steps per round on the sum of F over all tasks so far, each step on one task drawn from them
    [Finn2019].
    """

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self.learn(server, cohort, range(cohort.round))
        return result.up

    def kept(self, server: Tree, cohort: Cohort) -> int:
        return cohort.round
