"""Decouple (thesis, chapter 4): two architectures that are trained separately, for comparison."""

from hedgerow.algorithms.core.messages import Aggregate
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.early_exits import TwoExits, learnt, mean


class Decouple(TwoExits):
    """FedAvg on the simple clients and, separately, on the complex clients; nothing is shared [Acar2023]."""

    has_one_model = False

    def aggregate(self, server: Tree, few: Aggregate, many: Aggregate) -> Tree:
        return {"w": mean(server["w"], learnt(many)), "simple": mean(server["simple"], learnt(few))}
