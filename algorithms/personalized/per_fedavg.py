"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar, 2020); with prototypes P-Avg (PFL thesis, 3.3)."""

from hedgerow.algorithms.federated.fedavg import FedAvg
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PerFedAvg(Personal, FedAvg):
    """FedAvg of the clients' losses after adaptation. Biased, where it takes more than one local step."""

    class Hyper(PersonalSGD, FedAvg.Hyper):
        pass
