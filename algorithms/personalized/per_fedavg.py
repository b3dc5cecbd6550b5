"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, 2020); with prototypes it is P-Avg (PFL thesis, 3.3)."""

from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PerFedAvg(Personal, FedAvg):
    """FedAvg on the clients' losses after adaptation; biased if clients take more than one local step [Fallah2020]."""

    class Hyper(PersonalSGD, FedAvg.Hyper):
        pass
