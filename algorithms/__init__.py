"""The algorithms, one file each, by the name that experiment files use."""

from hedgerow.algorithms.b_moml import BMOML
from hedgerow.algorithms.base import Algorithm
from hedgerow.algorithms.central import Central
from hedgerow.algorithms.fedavg import FedAvg
from hedgerow.algorithms.feddyn import FedDyn
from hedgerow.algorithms.fedprox import FedProx
from hedgerow.algorithms.fedsgd import FedSGD
from hedgerow.algorithms.fedsplit import FedSplit
from hedgerow.algorithms.fs import FS
from hedgerow.algorithms.ftml import FTML
from hedgerow.algorithms.ftrl import FTRL
from hedgerow.algorithms.mogd import MOGD
from hedgerow.algorithms.moml import MOML
from hedgerow.algorithms.moml_zero import MOMLZero
from hedgerow.algorithms.offline import Offline
from hedgerow.algorithms.scaffold import Scaffold
from hedgerow.algorithms.toe import TOE

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedsgd": FedSGD,
    "feddyn": FedDyn,
    "scaffold": Scaffold,
    "fedsplit": FedSplit,
    "central": Central,
    "moml": MOML,
    "b_moml": BMOML,
    "moml_zero": MOMLZero,
    "ftml": FTML,
    "mogd": MOGD,
    "toe": TOE,
    "fs": FS,
    "ftrl": FTRL,
    "offline": Offline,
}
