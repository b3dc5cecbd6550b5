"""Comm-FedBiO (Li, Pei, Huang, "Communication-Efficient Robust Federated Learning with Noisy Labels", 2022).

This module has its main loop; the estimators of the hypergradient are in separate modules.
"""

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.bilevel.bilevel_algorithm import Bilevel, BilevelSGD
from hedgerow.algorithms.bilevel.derivatives import Derivatives
from hedgerow.algorithms.core.client_data import BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree, exceeds_size, flat, like, scale, sub


class CommSGD(BilevelSGD):
    """Hyperparameters that all estimators of Comm-FedBiO share."""

    lr: float = Field(0.01, gt=0, description="learning rate of the lower level, gamma")
    batch_size: int | None = Field(256, ge=1, description="samples of each local step; null: the whole local data")
    product_batch_size: int | None = Field(
        None, ge=1, description="samples of each Hessian product; null: the whole local data"
    )
    curvature: Literal["gauss_newton", "hessian"] = Field(
        "gauss_newton",
        description="gauss_newton: used instead of the Hessian, which need not be positive definite for neural "
        "networks",
    )
    damping: float = Field(0.0, ge=0, description="rho: rho v is added to each Hessian product")
    upper_scale: Literal["per_sample", "per_client", "paper"] | None = Field(
        None,
        description="factor on the hypergradient, which contains 1/N for the weight of a sample; per_sample: the "
        "number N of the participants' samples; per_client: each client's own number of samples; paper: 1; null: "
        "per_sample for weights of samples, else paper",
    )
    compression: int = Field(20, ge=1, description="number of parameters per number in a compressed message")


class CommFedBiO(Bilevel):
    """Takes T local steps on y, estimates the hypergradient from compressed messages, then steps on x (Algorithm 1).

    The server validates on the pool of the clients' validation samples, which it owns: nothing is transmitted for them.
    x is stored on the server; clients receive the part of x that concerns them, such as the weights of their samples.
    All exchanges of a round are with the round's clients, whereas Algorithms 2 and 3 sample clients again.
    """

    needs = Bilevel.needs | {"classes"}
    weighting = "own"
    variables = shared = ("x", "y")
    parts: ClassVar[Parts] = {"train": {"y": Part("y", "value")}}

    def init_server(self) -> Tree:
        return super().init_server() | {"failed": torch.zeros(())}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        everything = {"upper": BatchSpec(shuffle=False, split="validation")}
        result = yield self._training(server, cohort)
        z = server | result.up
        outer = yield Exchange(self.outer, self.common(z), POOL, batches=everything, site="pool")
        estimate = yield from self.crosses(z["y"], flat(outer.up["y"]), cohort.subset(result.contributed))
        if estimate is None:
            # The estimate diverged, so x is not updated.
            return {**z, "failed": z["failed"] + 1}
        return self.descend(self.hyper.at(cohort.round), z, {"x": self.hypergradient(outer.up["x"], *estimate)})

    def crosses(self, y: Tree, b: Tensor, cohort: Cohort) -> Exchanges:
        """Stack of every client's grad_xy g_m v, where v approximately solves H v = b, and the cohort of these clients.

        Returns None if the estimate fails. b (d,): grad_y F. Clients remember x.
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
        """Last exchange of an estimate. down: data about v that clients still need; known: their local inputs."""
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
        return exceeds_size(self.start()["y"], "algorithm.compression", self.hyper.compression)

    def server_metrics(self, server: Tree) -> dict[str, float]:
        """`failed_estimates`: number of rounds without a step on x, if there are any."""
        failed = float(server["failed"])
        return super().server_metrics(server) | ({"failed_estimates": failed} if failed else {})

    # ---- the clients ------------------------------------------------------------------------------------------------

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Takes T local steps on y; remembers x."""
        up, _, metrics = self.train_y(hp, down, state, data)
        return up, {"x": down["x"]}, metrics

    def outer(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """grad_x F and grad_y F on the server's own samples."""
        oracles = Derivatives(self.task, hp)
        x, y, value = oracles.upper_slopes(down, next(data.batches("upper")))
        return {"x": x, "y": y}, state, oracles.metrics([value])

    def finish(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """grad_xy g_m v for the client's part of x; for a sample's weight it is <the sample's gradient, v> / N_m."""
        oracles = Derivatives(self.task, hp)
        v = like(self.solution(hp, down, state), state["y"])
        return oracles.cross(state, next(data.batches("whole")), v), state, oracles.metrics([])

    def solution(self, hp: Any, down: Tree, state: Tree) -> Tensor:
        """Final v (d,), as a client knows it."""
        raise NotImplementedError

    def product(self, oracles: Derivatives, z: Tree, data: ClientData, v: Tensor) -> Tensor:
        """H_m v: (d,) -> (d,)."""
        return flat(oracles.curvature(z, next(data.batches("product")), like(v, z["y"])))

    @property
    def products(self) -> dict[str, BatchSpec]:
        """Mini-batch of a Hessian product."""
        return {"product": BatchSpec(self.hyper.product_batch_size, steps=1)}


WHOLE = {"whole": BatchSpec(shuffle=False)}
"""All samples of a client, as one batch."""


def shares_of(cohort: Cohort) -> Tensor:
    """Share of the samples that each client has, (clients,)."""
    return torch.from_numpy(cohort.sizes / cohort.sizes.sum())
