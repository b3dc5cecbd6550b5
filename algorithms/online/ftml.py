"""FTML: follow the meta leader (Finn et al., 2019): every task is kept, and learnt again and again."""

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online, OnlineSGD


class FTML(Online):
    """K steps a round on the sum of all tasks' F so far, each on a task drawn from those kept."""

    Hyper = OnlineSGD

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self.learn(server, cohort, range(cohort.round))
        return result.up

    def kept(self, server: Tree, cohort: Cohort) -> int:
        return cohort.round
