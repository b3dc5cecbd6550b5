"""Comm-FedBiO (Li, Pei, Huang, "Communication-Efficient Robust Federated Learning with Noisy Labels", 2022).

Its main loop, without the estimators of the hypergradient, which have files of their own.
"""

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.base import Batches, ClientData, ClientStep, Cohort, Exchange, Exchanges, Result
from hedgerow.algorithms.bilevel import Bilevel, BilevelSGD
from hedgerow.algorithms.hypergradient import flat, like
from hedgerow.algorithms.oracles import Oracles
from hedgerow.algorithms.trees import Tree, scale, sub


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
    upper_scale: Literal["per_sample", "per_client", "paper"] = Field(
        "per_sample",
        description="factor on the hypergradient, which of a sample's weight has a 1/N: the number N of the "
        "participants' samples; each client's own number; or 1",
    )
    compression: int = Field(20, ge=1, description="parameters per number of a compressed message")


class CommFedBiO(Bilevel):
    """A round (Algorithm 1): T local steps on y; an estimate of the hypergradient from compressed messages; x's step.

    The server validates on the pool of the clients' samples for validation, which are its own: nothing is transmitted
    for them. x is on the server; of it clients receive what concerns them, such as the weights of their samples.
    """

    variables = shared = ("x", "y")

    def init_server(self) -> Tree:
        return super().init_server() | {"failed": torch.zeros(())}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        steps = {"lower": Batches(self.hyper.batch_size, steps=self.hyper.steps)}
        moved = yield self.exchange(self.train, cohort, server, steps)
        z = server | moved.up
        everything = {"upper": Batches(shuffle=False, share="validation")}
        outer = yield Exchange(self.outer, self.common(z), np.zeros(1, int), batches=everything, on="pool")
        crosses = yield from self.crosses(z, flat(outer.up["y"]), cohort)
        if crosses is None:
            # The estimate grew without bound: x stays where it is.
            return {**z, "failed": z["failed"] + 1}
        slope = self._hypergradient(outer.up["x"], crosses, cohort)
        return self.descend(self.hyper.at(cohort.round), z, {"x": slope})

    def crosses(self, z: Tree, b: Tensor, cohort: Cohort) -> Exchanges:
        """What every client has for grad_xy g v, a stack of trees {"cross"}, where v solves H v = b, roughly.

        Nothing where it fails. b (d,): grad_y F.
        """
        raise NotImplementedError

    def exchange(
        self,
        step: ClientStep,
        cohort: Cohort,
        z: Tree,
        batches: dict[str, Batches],
        known: Tree | None = None,
        **more: Any,
    ) -> Exchange:
        """With the whole cohort, to which x and y are handed out, averaged by numbers of samples. more: also sent."""
        common, own = self.task.hand_out(z["x"], cohort.clients)
        return Exchange(
            step,
            {"x": common, "y": z["y"], **more},
            cohort.clients,
            per_client={"x": own} if own else {},
            batches=batches,
            weights=cohort.sizes,
            known=known or {},
        )

    def _hypergradient(self, direct: Tree, crosses: Result, cohort: Cohort) -> Tree:
        """grad_x F - sum_m N_m / N grad_xy g_m v, scaled."""
        sizes = cohort.sizes[crosses.kept].astype(float)
        factor = {"paper": np.ones_like(sizes), "per_sample": np.full_like(sizes, sizes.sum()), "per_client": sizes}
        scales = factor[self.hyper.upper_scale]
        weights = torch.from_numpy(scales * sizes / sizes.sum())
        cross = self.task.collect(crosses.up["cross"], cohort.clients[crosses.kept], weights)
        return sub(scale(direct, float(scales.mean())), cross)

    def report(self, server: Tree) -> dict[str, float]:
        """`failed_estimates`: rounds without a step on x, if there were any."""
        failed = float(server["failed"])
        return super().report(server) | ({"failed_estimates": failed} if failed else {})

    # ---- the clients ------------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        oracles = Oracles(self.task, hp)
        z = self.moved_y(hp, oracles, down, data.batches("lower"))
        return {"y": z["y"]}, state, oracles.metrics([])

    def outer(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """On the server's own samples: grad_x F and grad_y F."""
        oracles = Oracles(self.task, hp)
        x, y, value = oracles.upper_slopes(down, next(data.batches("upper")))
        return {"x": x, "y": y}, state, oracles.metrics([value])

    def cross(self, oracles: Oracles, z: Tree, data: ClientData, v: Tensor) -> Tree:
        """grad_xy g_m v, of what the client has of x: of a sample's weight, <its gradient, v> / N_m. v (d,)."""
        return oracles.cross(z, next(data.batches("whole")), like(v, z["y"]))

    def product(self, oracles: Oracles, z: Tree, data: ClientData, v: Tensor) -> Tensor:
        """H_m v: (d,) -> (d,)."""
        return flat(oracles.curvature(z, next(data.batches("product")), like(v, z["y"])))

    @property
    def products(self) -> dict[str, Batches]:
        """The mini-batch of a Hessian product."""
        return {"product": Batches(self.hyper.product_batch_size, steps=1)}


WHOLE = {"whole": Batches(shuffle=False)}
"""All samples of a client, as one batch."""


def shares(result: Result, cohort: Cohort) -> Tensor:
    """Of each kept client, its share of the samples: (clients,)."""
    sizes = cohort.sizes[result.kept]
    return torch.from_numpy(sizes / sizes.sum())
