"""PFLScaf (PFL thesis, chapter 3): SCAFFOLD of the clients' losses after adaptation."""

from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PFLScaf(Personal, Scaffold):
    """Meta gradients are corrected by the server's mean of them, which travels with the model: twice the traffic.

    g of the thesis is SCAFFOLD's c. Without adaptation it is SCAFFOLD, scored on each client's own samples.
    """

    class Hyper(PersonalSGD, Scaffold.Hyper):
        pass
