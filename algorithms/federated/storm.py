"""STORM (Cutkosky and Orabona, "Momentum-Based Variance Reduction in Non-Convex SGD", 2019): not federated."""

from typing import Any

import numpy as np

from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add
from hedgerow.algorithms.federated.stem import Stem
from hedgerow.algorithms.optim.storm_momentum import alpha


class STORM(Stem):
    """STORM on the pooled data, by the steps of STEM; a round is `steps` steps."""

    requires_full_participation = False
    is_centralized = True

    Hyper = Stem.Hyper

    def init_client(self) -> Tree:
        return {}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        pool, hyper = np.zeros(1, int), self.hyper
        if "momentum" not in server:
            first = {"train": BatchSpec(hyper.first_batch_size, steps=1)}
            start = yield Exchange(self.begin, server, pool, batches=first, on="pool")
            server = {**server, **start.up}
        steps = {"train": BatchSpec(hyper.batch_size, steps=hyper.steps)}
        result = yield Exchange(self.train, server, pool, batches=steps, on="pool")
        return result.up

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, momentum = down["w"], down["momentum"]
        for t, batch in enumerate(data.batches(), start=1):
            new = add(w, momentum, -hp.lr * alpha(hp, t))
            momentum, loss = self._momentum(hp, t, batch, new, w, momentum)
            w = new
        return {"w": w, "momentum": momentum}, state, {"loss": loss}
