"""NoSide (thesis, chapter 4): two architectures share parameters, whose mean is over all clients, as in HeteroFL."""

from typing import Literal

from pydantic import Field

from hedgerow.algorithms.core.algorithm import Aggregate
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.heterogeneous.early_exits import TwoArchitectures, TwoExits, learnt, mean
from hedgerow.algorithms.nn.submodel import named


class NoSide(TwoExits):
    """[w]_M is the mean of all clients' shared parameters, the rest that of the complex clients'.

    The exit of the simple network has no gradient on complex clients, which send it back as it was.
    """

    class Hyper(TwoArchitectures):
        exit: Literal["all", "simple"] = Field(
            "all",
            description="whose exits of the simple network are averaged: those of all clients, also of complex ones, "
            "which do not train theirs; or of the simple ones alone",
        )

    def aggregate(self, server: Tree, few: Aggregate, many: Aggregate) -> Tree:
        if self.hyper.exit == "all":
            return super().aggregate(server, few, many)
        sums, number = learnt(many)
        return {"w": mean(server["w"], learnt(few), (named(sums, sums.keys() - set(self.exit)), number))}
