"""FS: train from scratch (thesis, 5.3): a new random model for every task, adapted to it alone."""

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online
from hedgerow.algorithms.personalized.adaptation import Adaptation


class FS(Online):
    """Nothing is carried over. More training from scratch is more of `adapt_steps`."""

    Hyper = Adaptation  # type: ignore[assignment]

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        yield from ()
        return {"w": self.task.init(cohort.seed_for("init"))}
