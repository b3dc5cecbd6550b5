"""Full hypergradient in every round, by synchronous exchanges (Li, Huang, Huang, section 3: what FedBiO avoids)."""

from typing import Any

from pydantic import Field

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, LinearSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, count
from hedgerow.algorithms.optim.hypergradient import solve

DENSE = 2000
"""Maximum number of lower-level parameters for which Hessians are sent."""


class FullHypergradient(Bilevel):
    """Takes I local steps on y, solves the linear system in N exchanges of Hessian products, then takes a step on x
    [LiHuang2023].

    With `dense`, clients send their Hessians once instead, and the system is solved exactly (distributed bilevel
    optimisation).
    """

    class Hyper(LinearSGD):
        u_steps: int = Field(10, ge=1, description="N, number of steps on the linear system per round")
        dense: bool = Field(
            False, description="average the Hessians as matrices; feasible for a few hundred parameters"
        )

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        z, sampled_clients = server, cohort.clients
        steps = {"lower": BatchSpec(self.hyper.batch_size, steps=self.hyper.steps)}
        z = z | (yield Exchange(self.train_y, {"x": z["x"], "y": z["y"]}, sampled_clients, batches=steps)).up
        if self.hyper.dense:
            result = yield Exchange(self.matrices, {"x": z["x"], "y": z["y"]}, sampled_clients, batches=self.batches(1))
            z = z | {"u": solve(result.up["hessian"], result.up["b"])}
        else:
            for _ in range(self.hyper.u_steps):
                result = yield Exchange(self.residual, z, sampled_clients, batches=self.batches(1))
                z = self.descend(self.hyper, z, result.up)
        result = yield Exchange(self.hypergradient, z, sampled_clients, batches=self.batches(1))
        return self.descend(self.hyper.at(cohort.round), z, result.up)

    def incompatibility(self) -> str | None:
        size = count(self.start()["y"])
        if not self.hyper.dense or size <= DENSE:
            return None
        return (
            f"algorithm.dense: a Hessian of {size} parameters is too large; set it to false, or choose a smaller model"
        )

    def residual(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Derivatives(self.task, hp)
        return {"u": oracles.residual(down, next(self.draws(data)))}, state, oracles.metrics([])

    def matrices(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Sends the client's Hessian (d, d) and grad_y f."""
        oracles, draw = Derivatives(self.task, hp), next(self.draws(data))
        b = oracles.upper_slopes(down, draw.upper).y
        return {"hessian": oracles.dense_hessian(down, draw.hessians[0]), "b": b}, state, oracles.metrics([])

    def hypergradient(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """N(u): grad_x f - grad_xy g u."""
        oracles = Derivatives(self.task, hp)
        slope, value = oracles.hypergradient(down, next(self.draws(data)))
        return {"x": slope}, state, oracles.metrics([value])
