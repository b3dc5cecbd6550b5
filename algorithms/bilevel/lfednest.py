"""LFedNest (Tarzanagh, Li, Thrampoulidis, Oymak, 2022): FedNest with local gradients only."""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, NeumannSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree


class LFedNest(Bilevel):
    """Takes local steps on y, then local steps on x along hypergradients of the client's own Hessian
    [Tarzanagh2022].
    """

    variables = shared = ("x", "y")

    class Hyper(NeumannSGD):
        inner_rounds: int = Field(1, ge=1, description="T_in, number of rounds on y")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        z, hyper = server, self.hyper
        steps = {"lower": BatchSpec(hyper.batch_size, steps=hyper.steps)}
        for _ in range(hyper.inner_rounds):
            z = z | (yield Exchange(self.train_y, z, cohort.clients, batches=steps)).up
        return z | (yield Exchange(self.train_x, z, cohort.clients, batches=self.batches(hyper.steps))).up

    def train_x(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        z, oracles, values = down, Derivatives(self.task, hp), []
        for draw in self.draws(data):
            slope, value = oracles.local_hypergradient(z, draw)
            z = self.descend(hp, z, {"x": slope})
            values.append(value)
        return {"x": z["x"]}, state, oracles.metrics(values)
