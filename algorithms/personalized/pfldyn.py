"""PFLDyn (PFL thesis, chapter 3): FedDyn of the clients' losses after adaptation."""

from hedgerow.algorithms.federated.feddyn import FedDyn
from hedgerow.algorithms.personalized.personalized_algorithm import Personal, PersonalSGD


class PFLDyn(Personal, FedDyn):
    """min_w sum_i f_i(T_i(w)), with the linear term of each client's meta gradient at its own latest model.

    Losses after adaptation have different minimisers, as losses have: averaging is as biased, and FedDyn's linear and
    quadratic terms mend it. Without adaptation it is FedDyn, scored on each client's own samples.
    """

    class Hyper(PersonalSGD, FedDyn.Hyper):
        pass
