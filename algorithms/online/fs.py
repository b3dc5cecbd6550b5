"""FS: train from scratch (thesis, 5.3): a new random model for every task, adapted only to that task."""

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online
from hedgerow.algorithms.personalized.adaptation import Adaptation


class FS(Online):
    """Starts from a new random model for every task, so nothing is carried over [Acar2023].

    `adapt_steps` sets how long a model is trained from scratch.
    """

    Hyper = Adaptation  # type: ignore[assignment]

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        yield from ()
        return {"w": self.task.init(cohort.seed_for("init"))}
