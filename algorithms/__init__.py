"""The algorithms, one file each, by the name that experiment files use."""

from hedgerow.algorithms.base import Algorithm
from hedgerow.algorithms.fedavg import FedAvg
from hedgerow.algorithms.fedprox import FedProx
from hedgerow.algorithms.fedsgd import FedSGD

ALGORITHMS: dict[str, type[Algorithm]] = {"fedavg": FedAvg, "fedprox": FedProx, "fedsgd": FedSGD}
