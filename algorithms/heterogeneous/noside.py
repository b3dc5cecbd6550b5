"""NoSide (thesis, chapter 4): two architectures share parameters, averaged over all clients, as in HeteroFL."""

from typing import Literal

from pydantic import Field

from hedgerow.algorithms.core.messages import Aggregate
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.early_exits import TwoArchitectures, TwoExits, learnt, mean
from hedgerow.algorithms.nn.submodel import named


class NoSide(TwoExits):
    """Averages [w]_M over all clients, and the other parameters over the complex clients [Acar2023].

    The exit of the simple network has no gradient on complex clients, which return it unchanged.
    """

    class Hyper(TwoArchitectures):
        exit: Literal["all", "simple"] = Field(
            "all",
            description="clients over which the exit of the simple network is averaged: all clients, including "
            "complex ones, which do not train it; or only simple ones",
        )

    def aggregate(self, server: Tree, few: Aggregate, many: Aggregate) -> Tree:
        if self.hyper.exit == "all":
            return super().aggregate(server, few, many)
        sums, number = learnt(many)
        return {"w": mean(server["w"], learnt(few), (named(sums, sums.keys() - set(self.exit)), number))}
