"""FedBiOAcc with a separate lower level for each client (Li, Huang, Huang, Algorithm 4)."""

from hedgerow.algorithms.bilevel.bilevel_algorithm import NeumannSGD
from hedgerow.algorithms.bilevel.fedbioacc import FedBiOAcc
from hedgerow.algorithms.optim.storm_momentum import StormXY


class FedBiOAccLocal(FedBiOAcc):
    """Averages x and its momentum every I steps; y and its momentum stay on the client [LiHuang2023]."""

    variables = ("x", "y")
    shared = ("x",)
    is_personal = True

    class Hyper(NeumannSGD, StormXY):
        pass
