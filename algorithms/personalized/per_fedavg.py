"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, 2020); with prototypes it is P-Avg (PFL thesis, 3.3)."""

from typing import ClassVar

from hedgerow.algorithms.core.messages import Weighting
from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PerFedAvg(Personal, FedAvg):
    """FedAvg on the clients' losses after adaptation; biased if clients take more than one local step
    [Fallah2020, Alg. 1]. The mean weights clients equally.
    """

    weighting: ClassVar[Weighting | None] = "uniform"

    class Hyper(PersonalSGD, FedAvg.Hyper):
        pass
