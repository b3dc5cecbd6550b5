"""FedNest (Tarzanagh, Li, Thrampoulidis, Oymak, "FedNest: Federated Bilevel, Minimax, and Compositional
Optimization", 2022), and LFedNest.
"""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, LinearSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, scale, sub


class FedNest(Bilevel):
    """Updates y by FedInn, estimates u by FedIHGP (a Neumann series of random length), and updates x by FedOut
    [Tarzanagh2022].

    FedInn and FedOut are FedSVRG: local steps along the client's gradient, corrected by the mean of all clients'
    gradients at the starting point.
    """

    variables = shared = ("x", "y")

    class Hyper(LinearSGD):
        inner_rounds: int = Field(1, ge=1, description="T_in, number of FedInn rounds")
        anchor_batch_size: int | None = Field(
            None,
            ge=1,
            description="samples of each anchor gradient, whose mean corrects the local steps; null: all",
        )
        u_steps: int = Field(10, ge=1, description="N; the length of the Neumann series is drawn uniformly below N")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        z, hyper, sampled_clients = server, self.hyper, cohort.clients
        whole, steps = BatchSpec(hyper.anchor_batch_size, steps=1), BatchSpec(hyper.batch_size, steps=hyper.steps)
        for _ in range(hyper.inner_rounds):
            mean = yield Exchange(self.slope_y, z, sampled_clients, batches={"lower": whole})
            result = yield Exchange(self.train_y, {**z, **mean.up}, sampled_clients, batches={"lower": steps})
            z = z | result.up
        u = yield from self._solve(z, cohort)
        mean = yield Exchange(
            self.slope_x, {**z, "u": u}, sampled_clients, batches=self.batches(1, hyper.anchor_batch_size)
        )
        clients = sampled_clients[mean.contributed]
        result = yield Exchange(self.train_x, mean.up, clients, batches=self.batches(hyper.steps))
        return z | result.up

    def _solve(self, z: Tree, cohort: Cohort) -> Exchanges:
        """FedIHGP: N tau (I - tau H)^N' grad_y f with N' uniform below N; its expectation is the series of N terms."""
        hyper = self.hyper
        result = yield Exchange(self.start_u, z, cohort.clients, batches=self.batches(1))
        u = result.up["u"]
        for _ in range(cohort.seed_for("neumann") % hyper.u_steps):
            result = yield Exchange(self.hessian_u, {**z, "u": u}, cohort.clients, batches=self.batches(1))
            u = add(u, result.up["u"], -hyper.u_lr)
        return scale(u, hyper.u_lr * hyper.u_steps)

    def slope_y(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        return {"mean": oracles.lower_slope(down, next(data.batches("lower")))}, state, oracles.metrics([])

    def train_y(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        z, oracles = down, Derivatives(self.task, hp)
        for batch in data.batches("lower"):
            change = sub(oracles.lower_slope(z, batch), oracles.lower_slope(down, batch))
            z = self.descend(hp, z, {"y": add(down["mean"], change)})
        return {"y": z["y"]}, state, oracles.metrics([])

    def start_u(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        _, b, value = oracles.upper_slopes(down, next(data.batches("upper")))
        return {"u": b}, state, oracles.metrics([value])

    def hessian_u(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        return {"u": oracles.hessian(down, next(self.draws(data)).hessians[0], down["u"])}, state, oracles.metrics([])

    def slope_x(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Sends h^m; the client remembers x, y and u for its steps."""
        oracles = Derivatives(self.task, hp)
        return {"mean": oracles.hypergradient(down, next(self.draws(data)))[0]}, {"z": down}, oracles.metrics([])

    def train_x(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        z, oracles = state["z"], Derivatives(self.task, hp)
        for draw in self.draws(data):
            change = sub(oracles.hypergradient(z, draw)[0], oracles.hypergradient(state["z"], draw)[0])
            z = self.descend(hp, z, {"x": add(down["mean"], change)})
        return {"x": z["x"]}, state, oracles.metrics([])
