"""FedBiO with a separate lower level for each client (Li, Huang, Huang, Algorithm 3)."""

from torch import Tensor

from hedgerow.algorithms.bilevel.bilevel_algorithm import NeumannSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives, MiniBatch
from hedgerow.algorithms.bilevel.fedbio import FedBiO
from hedgerow.algorithms.core.pytree import Tree


class FedBiOLocal(FedBiO):
    """Clients keep their own y, use the Neumann series of their own Hessian, and share only x [LiHuang2023]."""

    variables = ("x", "y")
    shared = ("x",)
    is_personal = True

    Hyper = NeumannSGD  # type: ignore[assignment]

    def directions(self, oracles: Derivatives, z: Tree, draw: MiniBatch) -> tuple[Tree, Tensor]:
        return oracles.local_directions(z, draw)
