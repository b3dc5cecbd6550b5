"""PFLDyn (PFL thesis, chapter 3): FedDyn on the clients' losses after adaptation."""

from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PFLDyn(Personal, FedDyn):
    """FedDyn on sum_i f_i(T_i(w)); the linear term is each client's meta gradient at its own latest model [Acar2023].

    Losses after adaptation have different minimisers, as ordinary losses do, so averaging is just as biased. FedDyn's
    linear and quadratic terms remove this bias. Without adaptation it is FedDyn, scored on each client's own samples.
    """

    class Hyper(PersonalSGD, FedDyn.Hyper):
        pass
