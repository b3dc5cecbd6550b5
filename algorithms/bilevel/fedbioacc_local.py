"""FedBiOAcc with a lower level per client (Li, Huang, Huang, Algorithm 4)."""

from torch import Tensor

from hedgerow.algorithms.bilevel.bilevel_algorithm import NeumannSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives, MiniBatch
from hedgerow.algorithms.bilevel.fedbioacc import FedBiOAcc
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.optim.storm_momentum import StormXY


class FedBiOAccLocal(FedBiOAcc):
    """x and its momentum are averaged every I steps, y and its momentum never."""

    variables = ("x", "y")
    shared = ("x",)
    is_personal = True

    class Hyper(NeumannSGD, StormXY):
        pass

    def directions(self, oracles: Derivatives, z: Tree, draw: MiniBatch) -> tuple[Tree, Tensor]:
        return oracles.local_directions(z, draw)
