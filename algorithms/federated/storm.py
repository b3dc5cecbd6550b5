"""STORM (Cutkosky and Orabona, "Momentum-Based Variance Reduction in Non-Convex SGD", 2019): not federated."""

from typing import Any

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.federated.stem import Stem


class STORM(Stem):
    """STORM on the pooled data, by the steps of STEM; a round is `steps` steps [Cutkosky2019]."""

    needs = frozenset()
    trains_on = "pool"

    def init_client(self) -> Tree:
        return {}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        hyper = self.hyper
        if "momentum" not in server:
            first = {"train": BatchSpec(hyper.first_batch_size, steps=1)}
            start = yield Exchange(self.begin, server, POOL, batches=first, site="pool")
            server = {**server, **start.up}
        steps = {"train": BatchSpec(hyper.batch_size, steps=hyper.steps)}
        result = yield Exchange(self.train, server, POOL, batches=steps, site="pool")
        return result.up

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, momentum, losses = self._steps(hp, data, down["w"], down["momentum"])
        return {"w": w, "momentum": momentum}, state, {"loss": losses[-1]}
