"""PFLScaf (PFL thesis, chapter 3): SCAFFOLD on the clients' losses after adaptation."""

from hedgerow.algorithms.federated.scaffold import Scaffold
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PFLScaf(Personal, Scaffold):
    """Corrects meta gradients by the server's mean of them, which is transmitted with the model: twice the traffic
    [Acar2023].

    g in the thesis is c in SCAFFOLD. Without adaptation it is SCAFFOLD, scored on each client's own samples.
    """

    class Hyper(PersonalSGD, Scaffold.Hyper):
        pass
