"""FedBiO (Li, Huang, Huang, "Communication-Efficient Federated Bilevel Optimization", Algorithm 1)."""

from typing import Any, Literal

from pydantic import Field

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, LinearSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree


class FedBiO(Bilevel):
    """Solves three federated problems at once: y (lower level), u (linear system) and x (along the hypergradient)
    [LiHuang2023].

    Clients take I local steps on all three variables, which are then averaged.
    """

    @property
    def parts(self) -> Parts:  # type: ignore[override]
        """In `train_u`, clients do not receive u, so their answer is not a difference to a received value."""
        values = {name: Part(name, "value") for name in self.shared}
        if not self._takes_u_last:
            return {"train": values}
        return {
            "train_xy": {name: values[name] for name in values if name != "u"},
            "train_u": {"u": Part("u", "opaque")},
        }

    class Hyper(LinearSGD):
        u_at: Literal["t", "t+1"] = Field(
            "t",
            description="values of x and y for the step on u: before their step (t), or after it (t+1), which costs "
            "one more exchange",
        )

    @property
    def _takes_u_last(self) -> bool:
        """Whether u takes its step after x and y have been averaged; algorithms without a shared u cannot."""
        return isinstance(self.hyper, FedBiO.Hyper) and self.hyper.u_at == "t+1"

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        if self._takes_u_last:
            return (yield from self._u_last(server, cohort))
        result = yield Exchange(self.train, server, cohort.clients, batches=self.batches(self.hyper.steps))
        return result.up

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        z, oracles, values = {**state, **down}, Derivatives(self.task, hp), []
        for draw in self.draws(data):
            directions, value = self.directions(oracles, z, draw)
            z = self.descend(hp, z, directions)
            values.append(value)
        return self.common(z), self.own(z), oracles.metrics(values)

    # ---- step on u after the steps on x and y ---------------------------------------------------------------------

    def _u_last(self, server: Tree, cohort: Cohort) -> Exchanges:
        batches = self.batches(self.hyper.steps)
        xy = yield Exchange(self.train_xy, server, cohort.clients, batches=batches)
        u = yield Exchange(self.train_u, xy.up, cohort.clients[xy.contributed], batches=self.batches(1))
        return {**xy.up, **u.up}

    def train_xy(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Takes all steps except the last one on u, which needs the averaged x and y."""
        z, oracles, values, last = down, Derivatives(self.task, hp), [], None
        for draw in self.draws(data):
            if last:
                z = self.descend(hp, z, {"u": oracles.residual(z, last)})
            slope, value = oracles.hypergradient(z, draw)
            directions = {"x": slope, "y": oracles.lower_slope(z, draw.lower)}
            z = self.descend(hp, z, directions)
            values.append(value)
            last = draw
        return {"x": z["x"], "y": z["y"]}, {"u": z["u"]}, oracles.metrics(values)

    def train_u(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Takes the last step on u."""
        oracles = Derivatives(self.task, hp)
        residual = oracles.residual({**down, "u": state["u"]}, next(self.draws(data)))
        return self.descend(hp, {"u": state["u"]}, {"u": residual}), state, oracles.metrics([])
