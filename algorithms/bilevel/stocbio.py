"""StocBiO (Ji, Yang, Liang, "Bilevel Optimization: Convergence Analysis and Enhanced Design", 2021): not federated."""

from typing import Any

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, NeumannSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree


class StocBiO(Bilevel):
    """Takes D = `steps` steps on y from its previous value, then one step on x by a Neumann series, on the pooled data
    [Ji2021].

    All Hessian mini-batches have the same size; in the paper they shrink geometrically by 1 - tau mu.
    """

    trains_on = "pool"
    variables = shared = ("x", "y")

    Hyper = NeumannSGD

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        batches = self.batches(1) | {"inner": BatchSpec(self.hyper.batch_size, steps=self.hyper.steps)}
        result = yield Exchange(self.train, server, POOL, batches=batches, site="pool")
        return result.up

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        z = self.moved_y(hp, oracles, down, data.batches("inner"))
        slope, value = oracles.local_hypergradient(z, next(self.draws(data)))
        return self.descend(hp, z, {"x": slope}), state, oracles.metrics([value])
