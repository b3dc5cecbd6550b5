"""Comm-FedBiO (Li, Pei, Huang, "Communication-Efficient Robust Federated Learning with Noisy Labels", 2022).

Its main loop, without the estimators of the hypergradient, which have files of their own.
"""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, BilevelSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.algorithm import exceeds_model_size
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree, flat, like, scale, sub


class CommSGD(BilevelSGD):
    """Hyperparameters of Comm-FedBiO, whatever its estimator."""

    lr: float = Field(0.01, gt=0, description="learning rate of the lower level, gamma")
    batch_size: int | None = Field(256, ge=1, description="samples of each local step; null: the whole local data")
    product_batch_size: int | None = Field(
        None, ge=1, description="samples of each Hessian product; null: the whole local data"
    )
    curvature: Literal["gauss_newton", "hessian"] = Field(
        "gauss_newton",
        description="gauss_newton: in place of the Hessian, which for neural networks need not be positive definite",
    )
    damping: float = Field(0.0, ge=0, description="rho: rho v is added to each Hessian product")
    upper_scale: Literal["per_sample", "per_client", "paper"] | None = Field(
        None,
        description="factor on the hypergradient, which of a sample's weight has a 1/N: the number N of the "
        "participants' samples; each client's own number; 1; null: per_sample for weights of samples, else paper",
    )
    compression: int = Field(20, ge=1, description="parameters per number of a compressed message")


class CommFedBiO(Bilevel):
    """A round (Algorithm 1): T local steps on y; an estimate of the hypergradient from compressed messages; x's step.

    The server validates on the pool of the clients' samples for validation, which are its own: nothing is transmitted
    for them. x is on the server; of it clients receive what concerns them, such as the weights of their samples. All
    exchanges of a round are with the round's clients, where Algorithms 2 and 3 sample again.
    """

    variables = shared = ("x", "y")
    parts: ClassVar[Parts] = {"train": {"y": Part("y", "value")}}

    def init_server(self) -> Tree:
        return super().init_server() | {"failed": torch.zeros(())}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        everything = {"upper": BatchSpec(shuffle=False, split="validation")}
        moved = yield self._training(server, cohort)
        z = server | moved.up
        outer = yield Exchange(self.outer, self.common(z), np.zeros(1, int), batches=everything, on="pool")
        found = yield from self.crosses(z["y"], flat(outer.up["y"]), cohort.subset(moved.contributed))
        if found is None:
            # The estimate grew without bound: x stays where it is.
            return {**z, "failed": z["failed"] + 1}
        return self.descend(self.hyper.at(cohort.round), z, {"x": self.hypergradient(outer.up["x"], *found)})

    def crosses(self, y: Tree, b: Tensor, cohort: Cohort) -> Exchanges:
        """Every client's grad_xy g_m v, a stack of trees, where H v = b, roughly; and which clients' they are.

        None where it fails. b (d,): grad_y F. Clients remember x.
        """
        raise NotImplementedError

    def _training(self, server: Tree, cohort: Cohort) -> Exchange:
        own = {"x": self.task.hand_out(server["x"], cohort.clients)} if self.task.deals_x else {}
        return Exchange(
            self.train,
            {"y": server["y"]} if own else self.common(server),
            cohort.clients,
            per_client=own,
            batches={"lower": BatchSpec(self.hyper.batch_size, steps=self.hyper.steps)},
            weights=cohort.sizes,
            padding_down=self.task.padding(cohort.clients),
        )

    def crossing(self, down: Tree, known: Tree, cohort: Cohort) -> Exchange:
        """The last exchange of an estimate: what clients still need to know of v, and what they have for it."""
        return Exchange(
            self.finish,
            down,
            cohort.clients,
            local_inputs=known,
            batches=WHOLE,
            reduce="stack",
            padding_up=self.task.padding(cohort.clients),
        )

    def hypergradient(self, direct: Tree, crosses: Tree, cohort: Cohort) -> Tree:
        """grad_x F - sum_m N_m / N grad_xy g_m v, scaled."""
        sizes = cohort.sizes.astype(float)
        scales = {"paper": np.ones_like(sizes), "per_sample": np.full_like(sizes, sizes.sum()), "per_client": sizes}
        scale_name = self.hyper.upper_scale or ("per_sample" if self.task.deals_x else "paper")
        weights = torch.from_numpy(scales[scale_name] * sizes / sizes.sum())
        cross = self.task.collect(crosses, cohort.clients, weights)
        return sub(scale(direct, float(weights.sum())), cross)

    def incompatibility(self) -> str | None:
        return exceeds_model_size(self.start()["y"], "compression", self.hyper.compression)

    def server_metrics(self, server: Tree) -> dict[str, float]:
        """`failed_estimates`: rounds without a step on x, if there were any."""
        failed = float(server["failed"])
        return super().server_metrics(server) | ({"failed_estimates": failed} if failed else {})

    # ---- the clients ------------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """T local steps on y; x is remembered."""
        oracles = Derivatives(self.task, hp)
        z = self.moved_y(hp, oracles, down, data.batches("lower"))
        return {"y": z["y"]}, {"x": down["x"]}, oracles.metrics([])

    def outer(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """On the server's own samples: grad_x F and grad_y F."""
        oracles = Derivatives(self.task, hp)
        x, y, value = oracles.upper_slopes(down, next(data.batches("upper")))
        return {"x": x, "y": y}, state, oracles.metrics([value])

    def finish(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """grad_xy g_m v, of what the client has of x: of a sample's weight, <its gradient, v> / N_m."""
        oracles = Derivatives(self.task, hp)
        v = like(self.solution(hp, down, state), state["y"])
        return oracles.cross(state, next(data.batches("whole")), v), state, oracles.metrics([])

    def solution(self, hp: Any, down: Tree, state: Tree) -> Tensor:
        """v (d,), as a client knows it in the end."""
        raise NotImplementedError

    def product(self, oracles: Derivatives, z: Tree, data: ClientData, v: Tensor) -> Tensor:
        """H_m v: (d,) -> (d,)."""
        return flat(oracles.curvature(z, next(data.batches("product")), like(v, z["y"])))

    @property
    def products(self) -> dict[str, BatchSpec]:
        """The mini-batch of a Hessian product."""
        return {"product": BatchSpec(self.hyper.product_batch_size, steps=1)}


WHOLE = {"whole": BatchSpec(shuffle=False)}
"""All samples of a client, as one batch."""


def shares_of(cohort: Cohort) -> Tensor:
    """Of each client, its share of the samples: (clients,)."""
    return torch.from_numpy(cohort.sizes / cohort.sizes.sum())
