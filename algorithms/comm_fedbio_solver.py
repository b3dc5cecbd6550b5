"""Comm-FedBiO's iterative estimator (Algorithm 2): what its compressors have in common."""

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.base import ClientData, Cohort, Exchange, Exchanges
from hedgerow.algorithms.comm_fedbio import WHOLE, CommFedBiO, CommSGD
from hedgerow.algorithms.compression import dense
from hedgerow.algorithms.hypergradient import flat, like
from hedgerow.algorithms.oracles import Oracles
from hedgerow.algorithms.trees import Tree

GROWN = 10.0
"""The solution of H v = b is no longer than |b| / mu. An iterate so many times longer has failed."""


class SolverSGD(CommSGD):
    """Hyperparameters where H v = b is solved step by step."""

    u_lr: float | None = Field(
        None,
        gt=0,
        description="step of the quadratic's solver, alpha; null: 1 over the largest curvature, which each client "
        "looks for by `power_steps` power iterations and sends, a single number",
    )
    power_steps: int = Field(5, ge=1, description="Hessian products by which a client looks for its largest curvature")
    u_steps: int = Field(10, ge=1, description="I, steps of the quadratic's solver")
    u_offset: float | None = Field(
        None, gt=0, description="a of alpha_i = alpha a / (i + a), for decaying steps; null: constant ones"
    )
    average: bool = Field(
        False, description="take the average of the iterates, weighted by (i + a)^2, in place of the last"
    )
    variant: Literal["full", "literal"] = Field(
        "full",
        description="what is compressed: the quadratic's whole gradient (Eq. 12); or the Hessian product alone, as "
        "Algorithm 2 is printed, which stalls",
    )
    error_feedback: bool = Field(True, description="add what compression left out to the next message")


def exactly(number: float) -> Tensor:
    """0-d: of double precision, which does not spread to what it is multiplied with."""
    return torch.tensor(number, dtype=torch.float64)


class Step(NamedTuple):
    """A step of the solver, and what clients know of it. share: of the iterate before it, in their average."""

    number: int
    alpha: float
    share: float

    @property
    def known(self) -> Tree:
        return {"alpha": exactly(self.alpha), "share": exactly(self.share)}


class Change(NamedTuple):
    """A step of v, -change (d,), and how clients learn of it: by what is sent, and what they know.

    rest: what compression left out, where the server keeps it.
    """

    change: Tensor
    down: Tree
    known: Tree
    rest: Tensor | float = 0.0


class Solver(CommFedBiO):
    """v = H^-1 b by gradient descent on 1/2 v'Hv - b'v, whose steps are compressed.

    Clients follow v, from v = 0, by the changes that the server sends; what they remember ends with the round.
    """

    def crosses(self, z: Tree, b: Tensor, cohort: Cohort) -> Exchanges:
        began = yield self._begin(z, b, cohort)
        alpha = self.hyper.u_lr or 1 / max(float(began.up["curvature"]), 1e-12)
        v, limit = torch.zeros_like(b), GROWN * float(b.norm()) / max(self.hyper.ridge, 1e-12)
        last = Change(v, {}, {})
        for step in self.schedule(alpha):
            last = yield from self.step(step, last, v, b, cohort)
            v = self._moved(self.hyper, v, last.change, b, step.alpha)
            if not v.norm() <= limit:
                return None
            last = last._replace(known={**last.known, "alpha_before": exactly(step.alpha)})
        return (yield Exchange(self.finish, last.down, cohort.clients, known=last.known, batches=WHOLE, reduce="stack"))

    def step(self, step: Step, last: Change, v: Tensor, b: Tensor, cohort: Cohort) -> Exchanges:
        """Tell the clients of the last change, and return the next one."""
        raise NotImplementedError

    def schedule(self, alpha: float) -> list[Step]:
        """The solver's steps. alpha: the first one's size."""
        offset, numbers = self.hyper.u_offset, range(self.hyper.u_steps)
        sizes = [alpha if offset is None else alpha * offset / (i + offset) for i in numbers]
        shares = [(i + (offset or 1.0)) ** 2 for i in numbers]
        return [Step(i, size, share / sum(shares)) for i, size, share in zip(numbers, sizes, shares, strict=True)]

    @property
    def sends_b(self) -> bool:
        """Whether clients need to know b."""
        return True

    def _begin(self, z: Tree, b: Tensor, cohort: Cohort) -> Exchange:
        start = torch.randn(b.shape, generator=torch.Generator().manual_seed(cohort.draw("power"))).to(b)
        sent = {"b": b} if self.sends_b else {}
        return self.exchange(self.begin, cohort, z, self.products, known={"start": start}, **sent)

    @staticmethod
    def _moved(hp: Any, v: Tensor, change: Tensor, b: Tensor | None, alpha: Any) -> Tensor:
        if hp.variant == "full" or b is None:
            return v - change
        return v - change + alpha * b

    # ---- the clients ------------------------------------------------------------------------------------------------

    def begin(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Remember x, y and b; and look for the largest curvature, where it decides the solver's step."""
        oracles, zero = Oracles(self.task, hp), torch.zeros_like(down["start"])
        state = {name: down[name] for name in ("x", "y", "b") if name in down}
        state |= {"v": zero, "mean": zero, "residual": zero}
        if hp.u_lr is not None:
            return {}, state, {}
        batch, u, size = next(data.batches("product")), down["start"], torch.ones(())
        for _ in range(hp.power_steps):
            u = flat(oracles.curvature(down, batch, like(u / u.norm().clamp(min=1e-30), down["y"])))
            size = u.norm()
        return {"curvature": size}, state, oracles.metrics([])

    def follow(self, hp: Any, down: Tree, state: Tree) -> Tree:
        """The client's state, with v as it is after the server's last change."""
        v = state["v"]
        if "change" in down:
            change = dense({"indices": down.get("change_at"), **down["change"]}, len(v))
            v = self._moved(hp, v, change, state.get("b"), down["alpha_before"])
        return {**state, "v": v}

    def advanced(self, oracles: Oracles, down: Tree, state: Tree, data: ClientData) -> tuple[Tensor, Tree]:
        """alpha (H_m v - b), or without b where the product alone is compressed; and the state at v."""
        hp = oracles.hp
        state = self.follow(hp, down, state)
        u = self.product(oracles, state, data, state["v"])
        state = {**state, "mean": state["mean"] + down["share"] * state["v"]}
        return down["alpha"] * (u - state["b"] if hp.variant == "full" and "b" in state else u), state

    def finish(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        state, oracles = self.follow(hp, down, state), Oracles(self.task, hp)
        v = state["mean"] if hp.average else state["v"]
        return {"cross": self.cross(oracles, state, data, v)}, state, oracles.metrics([])
