"""Base class of Comm-FedBiO's iterative estimators (Algorithm 2), which differ in their compressor."""

from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, flat, like
from hedgerow.algorithms.noisy_labels.comm_fedbio import CommFedBiO, CommSGD
from hedgerow.algorithms.transforms.sparse_vectors import dense

GROWN = 3.0
"""Factor beyond which an iterate has failed. On a convex quadratic with steps up to 1 / L, no iterate is longer than
the sum of the steps times |b|, nor than |b| / mu; an iterate that is this many times longer has diverged.
"""


class SolverSGD(CommSGD):
    """Hyperparameters of estimators that solve H v = b step by step."""

    u_lr: float | None = Field(
        None,
        gt=0,
        description="alpha, step size of the quadratic's solver; null: 1 over the largest curvature (0.3 over it "
        "with count sketches), which each client estimates by `power_steps` power iterations and sends as a "
        "single number",
    )
    power_steps: int = Field(
        5, ge=1, description="Hessian products with which a client estimates its largest curvature"
    )
    u_steps: int = Field(10, ge=1, description="I, number of steps of the quadratic's solver")
    u_offset: float | None = Field(
        None, gt=0, description="a in alpha_i = alpha a / (i + a), for decaying steps; null: constant steps"
    )
    average: bool = Field(
        False, description="use the average of the iterates, weighted by (i + a)^2 (a = 1 for constant steps)"
    )
    variant: Literal["full", "literal"] = Field(
        "full",
        description="quantity that is compressed; full: the whole gradient of the quadratic (Eq. 12); literal: "
        "only the Hessian product, as Algorithm 2 is printed, which stalls",
    )
    error_feedback: bool = Field(True, description="add the compression error to the next message")


def exactly(number: float) -> Tensor:
    """0-d tensor of double precision, which does not promote the tensors that it is multiplied with."""
    return torch.tensor(number, dtype=torch.float64)


class Step(NamedTuple):
    """Step of the solver, and its inputs for clients. share: weight of the previous iterate in the average."""

    number: int
    alpha: float
    share: float

    @property
    def local_inputs(self) -> Tree:
        return {"alpha": exactly(self.alpha), "share": exactly(self.share)}


class Change(NamedTuple):
    """Step of v, -change (d,), and how clients learn of it: from `broadcast` and `local_inputs`.

    cohort: clients that remain. rest: compression error, if the server keeps it.
    """

    change: Tensor
    broadcast: Tree
    local_inputs: Tree
    cohort: Cohort
    rest: Tensor | float = 0.0


class Solver(CommFedBiO):
    """Computes v = H^-1 b by gradient descent on 1/2 v'Hv - b'v from v = 0, with compressed steps.

    Clients follow v through the changes that the server sends. A client that diverges is excluded until the round ends.
    """

    caution: ClassVar[float] = 1.0
    """Step size times the largest curvature, if the step size is estimated."""

    def crosses(self, y: Tree, b: Tensor, cohort: Cohort) -> Exchanges:
        start = yield self._beginning(y, b, cohort)
        alpha = self.hyper.u_lr or self.caution / max(float(start.up["curvature"]), 1e-12)
        # Clients cannot compute the estimated step size themselves, so it is sent to them.
        broadcast = {} if self.hyper.u_lr else {"first_alpha": torch.tensor(alpha)}
        v, distance, last = torch.zeros_like(b), 0.0, Change(b, broadcast, {}, cohort.subset(start.contributed))
        convexity = max(self.hyper.ridge + self.hyper.damping, 1e-12)
        for step in self.schedule(alpha):
            last = yield from self.step(step, last, b)
            v, distance = self.moved(self.hyper, v, last.change, b, step.alpha), distance + step.alpha
            if not v.norm() <= GROWN * min(distance, 1 / convexity) * b.norm():
                return None
            last = last._replace(local_inputs={**last.local_inputs, "alpha_before": exactly(step.alpha)})
        result = yield self.crossing(last.broadcast, last.local_inputs, last.cohort)
        return result.up, last.cohort.subset(result.contributed)

    def step(self, step: Step, last: Change, b: Tensor) -> Exchanges:
        """Sends the last change to the clients, and returns the next one."""
        raise NotImplementedError

    def schedule(self, alpha: float) -> list[Step]:
        """Steps of the solver. alpha: size of the first step."""
        offset, numbers = self.hyper.u_offset, range(self.hyper.u_steps)
        sizes = [alpha if offset is None else alpha * offset / (i + offset) for i in numbers]
        shares = [(i + (offset or 1.0)) ** 2 for i in numbers]
        return [Step(i, size, share / sum(shares)) for i, size, share in zip(numbers, sizes, shares, strict=True)]

    @property
    def sends_b(self) -> bool:
        """Whether clients need to know b."""
        return True

    def _beginning(self, y: Tree, b: Tensor, cohort: Cohort) -> Exchange:
        start = torch.randn(b.shape, generator=torch.Generator().manual_seed(cohort.seed_for("power"))).to(b)
        down = {"y": y} | ({"b": b} if self.sends_b else {})
        batches, known = self.products, {"start": start}
        return Exchange(self.begin, down, cohort.clients, batches=batches, weights=cohort.sizes, local_inputs=known)

    @staticmethod
    def moved(hp: Any, v: Tensor, change: Tensor, b: Tensor | None, alpha: Any) -> Tensor:
        """v after a step."""
        return v - change if hp.variant == "full" else v - change + alpha * b

    # ---- the clients ------------------------------------------------------------------------------------------------

    def begin(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Remembers y and b; estimates the largest curvature, if it determines the solver's step size."""
        oracles, zero = Derivatives(self.task, hp), torch.zeros_like(down["start"])
        state = {**state, "v": zero, "mean": zero, "residual": zero}
        state |= {name: down[name] for name in ("y", "b") if name in down}
        if hp.u_lr is not None:
            return {}, state, {}
        batch, u, size = next(data.batches("product")), down["start"], torch.ones(())
        for _ in range(hp.power_steps):
            u = flat(oracles.curvature(state, batch, like(u / u.norm().clamp(min=1e-30), state["y"])))
            size = u.norm()
        return {"curvature": size}, state, oracles.metrics([])

    def follow(self, hp: Any, down: Tree, state: Tree) -> Tree:
        """Client state with v after the server's last change."""
        v = state["v"]
        if "change" in down:
            change = dense({"indices": down.get("change_at"), **down["change"]}, len(v))
            v = self.moved(hp, v, change, state.get("b"), down["alpha_before"])
        return {**state, "v": v}

    def advanced(self, oracles: Derivatives, down: Tree, state: Tree, data: ClientData) -> tuple[Tensor, Tree]:
        """alpha (H_m v - b), without b if only the product is compressed; and the client state at v."""
        hp = oracles.hp
        state = self.follow(hp, down, state)
        u = self.product(oracles, state, data, state["v"])
        state = {**state, "mean": state["mean"] + down["share"] * state["v"]}
        return down["alpha"] * (u - state["b"] if hp.variant == "full" and "b" in state else u), state

    def solution(self, hp: Any, down: Tree, state: Tree) -> Tensor:
        return state["mean"] if hp.average else self.follow(hp, down, state)["v"]
