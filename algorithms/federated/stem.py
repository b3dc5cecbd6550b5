"""STEM (Khanduri et al., "STEM: A Stochastic Two-Sided Momentum Algorithm for Federated Learning", 2021)."""

from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, zeros_like
from hedgerow.algorithms.optim.gradient import gradient_and_value
from hedgerow.algorithms.optim.storm_momentum import Directions, Storm, alpha, estimate_momenta, take_steps


class Stem(Algorithm):
    """Takes local steps with STORM's momentum; models and momenta are averaged every I steps [Khanduri2021].

    The momenta are estimated at the averaged model, so a round takes two exchanges. Clients store the model at which
    their momentum was last estimated.
    """

    needs = frozenset({"all_clients"})

    class Hyper(Storm):
        lr: float = Field(0.1, gt=0, description="learning rate, multiplied by alpha_t")
        batch_size: int | None = Field(50, ge=1, description="samples of each mini-batch; null: the whole local data")
        weight_decay: float = Field(0.0, ge=0, description="L2 penalty of the loss")

    def init_client(self) -> Tree:
        w = self.task.init()
        return {"w": w, "momentum": zeros_like(w)}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        hyper, first = self.hyper, cohort.round == 1
        step, size = (self.begin, hyper.first_batch_size) if first else (self.estimate, hyper.batch_size)
        one, more = {"train": BatchSpec(size, steps=1)}, {"train": BatchSpec(hyper.batch_size, steps=hyper.steps - 1)}
        estimate = yield Exchange(step, server, cohort.clients, batches=one)
        momentum = {} if first and not hyper.sync_init else estimate.up
        result = yield Exchange(self.move, momentum, cohort.clients[estimate.contributed], batches=more)
        return result.up

    def begin(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Computes the first momentum."""
        directions, loss = self._directions(hp)({"x": down["w"]}, next(data.batches()))
        momentum = directions["x"]
        return {"momentum": momentum}, {"w": down["w"], "momentum": momentum}, {"loss": loss}

    def estimate(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Estimates the momentum at the averaged model."""
        new, old, momenta = {"x": down["w"]}, {"x": state["w"]}, {"x": state["momentum"]}
        momenta, loss = estimate_momenta(hp, 0, self._directions(hp), next(data.batches()), new, old, momenta)
        momentum = momenta["x"]
        return {"momentum": momentum}, {"w": down["w"], "momentum": momentum}, {"loss": loss}

    def move(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Takes I steps with new momenta between them. down: the averaged momentum; empty: each client uses its own."""
        w, momentum, losses = self._steps(hp, data, state["w"], {**state, **down}["momentum"])
        last = add(w, momentum, -hp.lr * alpha(hp, hp.steps))
        return {"w": last}, {"w": w, "momentum": momentum}, {"loss": torch.stack(losses).mean()} if losses else {}

    def _steps(self, hp: Any, data: ClientData, w: Tree, momentum: Tree) -> tuple[Tree, Tree, list[Tensor]]:
        def step(z: Tree, momenta: Tree, factor: Any) -> Tree:
            return {"x": add(z["x"], momenta["x"], -hp.lr * factor)}

        z, momenta, losses = take_steps(hp, self._directions(hp), data.batches(), step, {"x": w}, {"x": momentum})
        return z["x"], momenta["x"], losses

    def _directions(self, hp: Any) -> Directions:
        def directions(z: Tree, batch: Batch) -> tuple[Tree, Tensor]:
            slope, loss = gradient_and_value(self.task.loss)(z["x"], batch)
            return {"x": add(slope, z["x"], hp.weight_decay)}, loss

        return directions
