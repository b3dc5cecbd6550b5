"""Decouple (thesis, chapter 4): two architectures in two separate trainings, for comparison."""

from hedgerow.algorithms.core.algorithm import Aggregate
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.early_exits import TwoArchitectures, TwoExits, learnt, mean


class Decouple(TwoExits):
    """FedAvg of the simple clients beside FedAvg of the complex ones: nothing is shared."""

    shares = False

    Hyper = TwoArchitectures

    def aggregate(self, server: Tree, few: Aggregate, many: Aggregate) -> Tree:
        return {"w": mean(server["w"], learnt(many)), "simple": mean(server["simple"], learnt(few))}
