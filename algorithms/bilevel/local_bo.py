"""Naive federated bilevel optimisation: hypergradients of each client's own Hessian (Li, Huang, Huang, section 3)."""

from hedgerow.algorithms.bilevel.bilevel_algorithm import NeumannSGD
from hedgerow.algorithms.bilevel.fedbio import FedBiO


class LocalBO(FedBiO):
    """Averages x and y, but not the linear system, so it is biased if the clients' Hessians differ [LiHuang2023].

    With identical clients, it is the method of concurrent work for homogeneous data.
    """

    variables = ("x", "y")
    shared = ("x", "y")

    Hyper = NeumannSGD  # type: ignore[assignment]
