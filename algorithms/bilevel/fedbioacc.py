"""FedBiOAcc (Li, Huang, Huang, "Communication-Efficient Federated Bilevel Optimization", Algorithm 2)."""

from functools import partial
from typing import Any

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, LinearSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, zeros_like
from hedgerow.algorithms.optim.storm_momentum import StormXYU, alpha, estimate_momenta, take_steps


class FedBiOAcc(Bilevel):
    """FedBiO with STORM's momentum on all variables; variables and momenta are averaged every I steps [LiHuang2023].

    The momenta are estimated at the averaged variables, so a round takes two exchanges. Clients store the variables at
    which their momenta were last estimated.
    """

    needs = Bilevel.needs | {"all_clients"}

    class Hyper(LinearSGD, StormXYU):
        pass

    def init_client(self) -> Tree:
        z = self.start()
        return {**self.own(z), "z": z, "momenta": zeros_like(z)}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        hyper, first = self.hyper, cohort.round == 1
        step, size = (self.begin, hyper.first_batch_size) if first else (self.estimate, hyper.batch_size)
        estimate = yield Exchange(step, server, cohort.clients, batches=self.batches(1, size))
        momenta = {} if first and not hyper.sync_init else estimate.up
        clients = cohort.clients[estimate.contributed]
        result = yield Exchange(self.move, momenta, clients, batches=self.batches(hyper.steps - 1))
        return result.up

    def begin(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Computes the first momenta."""
        z, oracles = {**self.own(state), **down}, Derivatives(self.task, hp)
        momenta, value = self.directions(oracles, z, next(self.draws(data)))
        return self.common(momenta), {**state, "z": z, "momenta": momenta}, oracles.metrics([value])

    def estimate(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Estimates the momenta at the averaged variables."""
        z, oracles = {**self.own(state), **down}, Derivatives(self.task, hp)
        directions, draw = partial(self.directions, oracles), next(self.draws(data))
        momenta, value = estimate_momenta(hp, 0, directions, draw, z, state["z"], state["momenta"])
        return self.common(momenta), {**state, "z": z, "momenta": momenta}, oracles.metrics([value])

    def move(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Takes I steps with new momenta between them. down: the averaged momenta; empty: each client uses its own."""
        oracles, step = Derivatives(self.task, hp), partial(self.descend, hp)
        directions, momenta = partial(self.directions, oracles), {**state["momenta"], **down}
        z, momenta, values = take_steps(hp, directions, self.draws(data), step, state["z"], momenta)
        last = self.descend(hp, z, momenta, alpha(hp, hp.steps))
        return self.common(last), {**self.own(last), "z": z, "momenta": momenta}, oracles.metrics(values)
