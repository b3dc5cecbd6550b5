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
    """A round: FedInn moves y, FedIHGP estimates u by a Neumann series of random length, FedOut moves x.

    FedInn and FedOut are FedSVRG: local steps along the client's gradient, corrected by the mean of all clients' at
    where the steps began.
    """

    variables = shared = ("x", "y")

    class Hyper(LinearSGD):
        inner_rounds: int = Field(1, ge=1, description="T_in, rounds of FedInn")
        anchor_batch_size: int | None = Field(
            None, ge=1, description="samples of the gradients by whose mean the local steps are corrected; null: all"
        )
        u_steps: int = Field(10, ge=1, description="N, of the Neumann series; its length is drawn below it")

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        z, hyper, sampled_clients = server, self.hyper, cohort.clients
        whole, steps = BatchSpec(hyper.anchor_batch_size, steps=1), BatchSpec(hyper.batch_size, steps=hyper.steps)
        for _ in range(hyper.inner_rounds):
            mean = yield Exchange(self.slope_y, z, sampled_clients, batches={"lower": whole})
            moved = yield Exchange(self.train_y, {**z, **mean.up}, sampled_clients, batches={"lower": steps})
            z = z | moved.up
        u = yield from self._solve(z, cohort)
        mean = yield Exchange(
            self.slope_x, {**z, "u": u}, sampled_clients, batches=self.batches(1, hyper.anchor_batch_size)
        )
        there = sampled_clients[mean.contributed]
        moved = yield Exchange(self.train_x, mean.up, there, batches=self.batches(hyper.steps))
        return z | moved.up

    def _solve(self, z: Tree, cohort: Cohort) -> Exchanges:
        """FedIHGP: N tau (I - tau H)^N' grad_y f, where N' is uniform below N: in expectation the series of N terms."""
        hyper = self.hyper
        found = yield Exchange(self.start_u, z, cohort.clients, batches=self.batches(1))
        u = found.up["u"]
        for _ in range(cohort.seed_for("neumann") % hyper.u_steps):
            found = yield Exchange(self.hessian_u, {**z, "u": u}, cohort.clients, batches=self.batches(1))
            u = add(u, found.up["u"], -hyper.u_lr)
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
        """h^m; the client remembers x, y and u for its steps."""
        oracles = Derivatives(self.task, hp)
        return {"mean": oracles.hypergradient(down, next(self.draws(data)))[0]}, {"z": down}, oracles.metrics([])

    def train_x(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        z, oracles = state["z"], Derivatives(self.task, hp)
        for draw in self.draws(data):
            change = sub(oracles.hypergradient(z, draw)[0], oracles.hypergradient(state["z"], draw)[0])
            z = self.descend(hp, z, {"x": add(down["mean"], change)})
        return {"x": z["x"]}, state, oracles.metrics([])
