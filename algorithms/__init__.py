"""The algorithms, one file each, by the name that experiment files use."""

from hedgerow.algorithms.base import Algorithm
from hedgerow.algorithms.central import Central
from hedgerow.algorithms.fedavg import FedAvg
from hedgerow.algorithms.feddyn import FedDyn
from hedgerow.algorithms.fedprox import FedProx
from hedgerow.algorithms.fedsgd import FedSGD
from hedgerow.algorithms.fedsplit import FedSplit
from hedgerow.algorithms.scaffold import Scaffold

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedsgd": FedSGD,
    "feddyn": FedDyn,
    "scaffold": Scaffold,
    "fedsplit": FedSplit,
    "central": Central,
}
