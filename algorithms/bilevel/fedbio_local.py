"""FedBiO with a separate lower level for each client (Li, Huang, Huang, Algorithm 3)."""

from hedgerow.algorithms.bilevel.bilevel_algorithm import NeumannSGD
from hedgerow.algorithms.bilevel.fedbio import FedBiO


class FedBiOLocal(FedBiO):
    """Clients keep their own y, use the Neumann series of their own Hessian, and share only x [LiHuang2023]."""

    variables = ("x", "y")
    shared = ("x",)
    is_personal = True

    Hyper = NeumannSGD  # type: ignore[assignment]
