"""The algorithms, one file each, by the name that experiment files use."""

from hedgerow.algorithms.bilevel.fedbio import FedBiO
from hedgerow.algorithms.bilevel.fedbio_local import FedBiOLocal
from hedgerow.algorithms.bilevel.fedbioacc import FedBiOAcc
from hedgerow.algorithms.bilevel.fedbioacc_local import FedBiOAccLocal
from hedgerow.algorithms.bilevel.fednest import FedNest
from hedgerow.algorithms.bilevel.full_hypergradient import FullHypergradient
from hedgerow.algorithms.bilevel.lfednest import LFedNest
from hedgerow.algorithms.bilevel.local_bo import LocalBO
from hedgerow.algorithms.bilevel.mrbo import MRBO
from hedgerow.algorithms.bilevel.stocbio import StocBiO
from hedgerow.algorithms.compressed.fedsep_bilevel import FedSepBilevel
from hedgerow.algorithms.compressed.fedsep_lasso import FedSepLasso
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.distillation.disk import DiSK
from hedgerow.algorithms.distillation.ds_fl import DSFL
from hedgerow.algorithms.distillation.fed_et import FedET
from hedgerow.algorithms.distillation.feddf import FedDF
from hedgerow.algorithms.distillation.fitnet import FitNet
from hedgerow.algorithms.distillation.kd import KD
from hedgerow.algorithms.distillation.semckd import SemCKD
from hedgerow.algorithms.distillation.simkd import SimKD
from hedgerow.algorithms.distillation.simkd_disk import SimKDDiSK
from hedgerow.algorithms.federated.central import Central
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.federated.fedprox import FedProx
from hedgerow.algorithms.federated.fedsgd import FedSGD
from hedgerow.algorithms.federated.fedsplit import FedSplit
from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.federated.stem import Stem
from hedgerow.algorithms.federated.storm import STORM
from hedgerow.algorithms.heterogeneous.decouple import Decouple
from hedgerow.algorithms.heterogeneous.feddst import FedDST
from hedgerow.algorithms.heterogeneous.federated_dropout import FederatedDropout
from hedgerow.algorithms.heterogeneous.fedhen import FedHeN
from hedgerow.algorithms.heterogeneous.fedrolex import FedRolex
from hedgerow.algorithms.heterogeneous.fedsep_masks import FedSepMasks
from hedgerow.algorithms.heterogeneous.fjord import FjORD
from hedgerow.algorithms.heterogeneous.flash import Flash
from hedgerow.algorithms.heterogeneous.heterofl import HeteroFL
from hedgerow.algorithms.heterogeneous.noside import NoSide
from hedgerow.algorithms.heterogeneous.zerofl import ZeroFL
from hedgerow.algorithms.noisy_labels.comm_fedbio_non_iter import CommFedBiONonIter
from hedgerow.algorithms.noisy_labels.comm_fedbio_sketch import CommFedBiOSketch
from hedgerow.algorithms.noisy_labels.comm_fedbio_topk import CommFedBiOTopK
from hedgerow.algorithms.noisy_labels.fedavg_oracle import FedAvgOracle
from hedgerow.algorithms.noisy_labels.focus import Focus
from hedgerow.algorithms.noisy_labels.preprocess import Preprocess
from hedgerow.algorithms.online.b_moml import BMOML
from hedgerow.algorithms.online.fs import FS
from hedgerow.algorithms.online.ftml import FTML
from hedgerow.algorithms.online.ftrl import FTRL
from hedgerow.algorithms.online.mogd import MOGD
from hedgerow.algorithms.online.moml import MOML
from hedgerow.algorithms.online.moml_zero import MOMLZero
from hedgerow.algorithms.online.offline import Offline
from hedgerow.algorithms.online.toe import TOE
from hedgerow.algorithms.personalized.per_fedavg import PerFedAvg
from hedgerow.algorithms.personalized.pfl_oracle import PFLOracle
from hedgerow.algorithms.personalized.pfldyn import PFLDyn
from hedgerow.algorithms.personalized.pflscaf import PFLScaf

ALGORITHMS: dict[str, type[Algorithm]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "fedsgd": FedSGD,
    "feddyn": FedDyn,
    "scaffold": Scaffold,
    "fedsplit": FedSplit,
    "central": Central,
    "kd": KD,
    "disk": DiSK,
    "fitnet": FitNet,
    "semckd": SemCKD,
    "simkd": SimKD,
    "simkd_disk": SimKDDiSK,
    "per_fedavg": PerFedAvg,
    "pfldyn": PFLDyn,
    "pflscaf": PFLScaf,
    "pfl_oracle": PFLOracle,
    "moml": MOML,
    "b_moml": BMOML,
    "moml_zero": MOMLZero,
    "ftml": FTML,
    "mogd": MOGD,
    "toe": TOE,
    "fs": FS,
    "ftrl": FTRL,
    "offline": Offline,
    "fedbio": FedBiO,
    "fedbioacc": FedBiOAcc,
    "fedbio_local": FedBiOLocal,
    "fedbioacc_local": FedBiOAccLocal,
    "local_bo": LocalBO,
    "full_hypergradient": FullHypergradient,
    "fednest": FedNest,
    "lfednest": LFedNest,
    "stocbio": StocBiO,
    "mrbo": MRBO,
    "stem": Stem,
    "storm": STORM,
    "comm_fedbio_topk": CommFedBiOTopK,
    "comm_fedbio_sketch": CommFedBiOSketch,
    "comm_fedbio_non_iter": CommFedBiONonIter,
    "fedavg_oracle": FedAvgOracle,
    "focus": Focus,
    "preprocess": Preprocess,
    "fedsep": FedSepLasso,
    "fedsep_bilevel": FedSepBilevel,
    "heterofl": HeteroFL,
    "federated_dropout": FederatedDropout,
    "fedrolex": FedRolex,
    "fjord": FjORD,
    "fedsep_masks": FedSepMasks,
    "zerofl": ZeroFL,
    "feddst": FedDST,
    "flash": Flash,
    "fedhen": FedHeN,
    "noside": NoSide,
    "decouple": Decouple,
    "feddf": FedDF,
    "ds_fl": DSFL,
    "fed_et": FedET,
}

ALIASES = {"fedavg_topk": "fedavg", "fetchsgd": "fedavg"}
"""Names that experiment files may use for an algorithm with a transform: `top_k` and `sketch`."""
