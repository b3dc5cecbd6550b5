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
    """Three federated problems at once: y, the lower level; u, the linear system; x along the hypergradient.

    Clients take I local steps on all three; then all three are averaged.
    """

    @property
    def parts(self) -> Parts:  # type: ignore[override]
        """In `train_u` clients receive no u, of which the answer would be a difference."""
        values = {name: Part(name, "value") for name in self.shared}
        last = {
            "train_xy": {name: values[name] for name in values if name != "u"},
            "train_u": {"u": Part("u", "opaque")},
        }
        return {"train": values} | (last if "u" in values else {})

    class Hyper(LinearSGD):
        u_at: Literal["t", "t+1"] = Field(
            "t", description="where u's step looks: at x and y before their step, or after it, which costs an exchange"
        )

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        if isinstance(self.hyper, FedBiO.Hyper) and self.hyper.u_at == "t+1":
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

    # ---- where u's step follows those of x and y ------------------------------------------------------------------

    def _u_last(self, server: Tree, cohort: Cohort) -> Exchanges:
        batches = self.batches(self.hyper.steps)
        moved = yield Exchange(self.train_xy, server, cohort.clients, batches=batches)
        solved = yield Exchange(self.train_u, moved.up, cohort.clients[moved.contributed], batches=self.batches(1))
        return {**moved.up, **solved.up}

    def train_xy(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """All but the last step of u, which waits for the averaged x and y."""
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
        """The last step of u."""
        oracles = Derivatives(self.task, hp)
        residual = oracles.residual({**down, "u": state["u"]}, next(self.draws(data)))
        return self.descend(hp, {"u": state["u"]}, {"u": residual}), state, oracles.metrics([])
