"""MRBO (Yang, Ji, Liang, "Provably Faster Algorithms for Bilevel Optimization", 2021): not federated."""

from functools import partial
from typing import Any

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, NeumannSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.optim.storm_momentum import StormXY, take_steps


class MRBO(Bilevel):
    """Single-loop STORM on y and on x (by a Neumann series) on the pooled data; a round is `steps` steps [Yang2021]."""

    trains_on = "pool"
    variables = shared = ("x", "y")

    class Hyper(NeumannSGD, StormXY):
        pass

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        if "momenta" not in server:
            first = self.batches(1, self.hyper.first_batch_size)
            start = yield Exchange(self.begin, server, POOL, batches=first, site="pool")
            server = {**server, "momenta": start.up}
        result = yield Exchange(self.train, server, POOL, batches=self.batches(self.hyper.steps), site="pool")
        return result.up

    def begin(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        momenta, value = oracles.local_directions(down, next(self.draws(data)))
        return momenta, state, oracles.metrics([value])

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles, z, step = Derivatives(self.task, hp), self.common(down), partial(self.descend, hp)
        z, momenta, values = take_steps(hp, oracles.local_directions, self.draws(data), step, z, down["momenta"])
        return {**z, "momenta": momenta}, state, oracles.metrics(values)
