"""Clients with a simple or a complex architecture, one being a part of the other (thesis, chapter 4)."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.aggregators.masked_mean import masked_mean
from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import Batch, ClientData
from hedgerow.algorithms.core.messages import Aggregate, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, count, sub, tree_map, zeros_like
from hedgerow.algorithms.core.task import Params
from hedgerow.algorithms.core.torch_private import call
from hedgerow.algorithms.nn.submodel import named
from hedgerow.algorithms.optim.local_sgd import LocalSGD, minimize


class TwoArchitectures(LocalSGD):
    """Hyperparameters of algorithms that train two architectures."""

    simple: float = Field(
        0.5, ge=0, le=1, description="share of the clients (the first ones) that have the simple network"
    )
    latest: bool = Field(
        False,
        description="score the averages of all clients' latest models, simple and complex, instead of the "
        "server's models",
    )


class TwoExits(Algorithm):
    """Base class of algorithms on a complex network w that contains a simple one, [w]_M, with an exit of its own.

    The model lists the parameters of [w]_M in `early`, and those of its exit, which the complex network does not use,
    in `early_alone`. Algorithms that share [w]_M keep one w; for the others, the server also has a simple model.
    """

    needs = frozenset({"classes", "early_exit"})

    Hyper = TwoArchitectures

    has_one_model: ClassVar[bool] = True

    def incompatibility(self) -> str | None:
        if hasattr(self.task.module, "early"):
            return None
        return f"task.model: {self.hyper.name} needs a network with an early exit; choose resnet_exit"

    def early(self, w: Params) -> Params:
        """Parameters of the simple network, [w]_M."""
        return named(w, self.task.module.early)  # type: ignore[arg-type]

    @property
    def exit(self) -> Collection[str]:
        """Parameters of M that the complex network's own loss does not depend on."""
        return getattr(self.task.module, "early_alone", ())

    def init_server(self) -> Tree:
        w = self.task.init()
        server: Tree = {"w": w} if self.has_one_model else {"w": w, "simple": self.early(w)}
        return {**server, "latest": {"simple": self.early(w), "complex": w}} if self.hyper.latest else server

    def init_client(self) -> Tree:
        """Latest model of the client, if `latest` is set; simple clients do not use its other parameters."""
        return {"latest": self.task.init()} if self.hyper.latest else {}

    # ---- server -----------------------------------------------------------------------------------------------------

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        border = round(self.hyper.simple * cohort.population)
        simple = cohort.clients < border
        few, many = yield [
            self.ask(self.train_simple, self.simple(server), cohort.clients[simple]),
            self.ask(self.train_complex, server["w"], cohort.clients[~simple]),
        ]
        after = self.aggregate(server, few, many)
        if self.hyper.latest:
            latest = {"simple": _moved(server["latest"]["simple"], few, border)}
            latest["complex"] = _moved(server["latest"]["complex"], many, cohort.population - border)
            after["latest"] = latest
        return after

    def ask(self, step: Any, w: Params, clients: np.ndarray) -> Exchange:
        # The change of a client's latest model serves the averages only and is not charged as traffic.
        padding = np.full(len(clients), count(w)) if self.hyper.latest else None
        return Exchange(step, {"w": w}, clients, batches=self.hyper.batches, reduce="sum", padding_up=padding)

    def simple(self, server: Tree) -> Params:
        """Parameters of the simple model."""
        return self.early(server["w"]) if self.has_one_model else server["simple"]

    def aggregate(self, server: Tree, few: Aggregate, many: Aggregate) -> Tree:
        """Server models after the round: shared parameters are averaged over all clients, others over complex clients.

        few, many: sums of the parameters that simple and complex clients trained.
        """
        return {"w": mean(server["w"], learnt(few), learnt(many))}

    # ---- clients ----------------------------------------------------------------------------------------------------

    def train_simple(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """ClientTraining step of a simple model."""
        return self.learn(lambda w, batch: self.loss(w, batch, "early"), hp, down, state, data)

    def train_complex(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """ClientTraining step of a complex model."""
        return self.learn(lambda w, batch: self.loss(w, batch, "late"), hp, down, state, data, side=0.0)

    def learn(
        self, loss: Any, hp: Any, down: Tree, state: Tree, data: ClientData, side: Any = 1.0
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        """Minimises a loss in which the simple network's loss has the weight `side`.

        If `side` is 0, the simple network's exit is returned as received, so weight decay does not shrink it.
        """
        w, value = minimize(loss, down["w"], data, hp)
        exits = named(down["w"], self.exit)
        w = w | {name: torch.where(old.new_zeros(()) + side > 0, w[name], old) for name, old in exits.items()}
        if not hp.latest:
            return {"w": w}, state, {"loss": value}
        before = {name: state["latest"][name] for name in w}
        return {"w": w, "change": sub(w, before)}, {"latest": {**state["latest"], **w}}, {"loss": value}

    def logits(self, w: Params, x: Tensor, exits: str) -> Any:
        """Logits of the "early" or the "late" exit, or of "both" as a pair."""
        return call(self.task.module, w, x, exits=exits)

    def loss(self, w: Params, batch: Batch, exits: str) -> Tensor:
        return self.task.criterion(self.logits(w, batch.x, exits), batch)

    # ---- evaluation -------------------------------------------------------------------------------------------------

    def evaluate_params(self, server: Tree) -> Tree:
        return server["latest"]["complex"] if self.hyper.latest else server["w"]

    def scored(self, server: Tree) -> Tree:
        simple = server["latest"]["simple"] if self.hyper.latest else self.simple(server)
        return {"w": self.evaluate_params(server), "simple": simple}

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        """Scores both models."""
        # Predictions are those of the complex model.
        task = replace(self.task.with_accuracy, scored=None)
        totals = task.tally(lambda batch: task.rate(self.logits(down["simple"], batch.x, "early"), batch), data)
        up, state, metrics = super().evaluate_client(hp, down, state, data)
        simple = {f"simple_{name}": total for name, total in totals.items() if name != "samples"}
        return up, state, {**metrics, **simple}


def _moved(average: Params, result: Aggregate, clients: int) -> Params:
    """Average of all clients' latest models, after the clients of the round have updated theirs."""
    return add(average, result.up["change"], 1 / clients) if result.contributed.any() else average


def mean(w: Params, *answers: tuple[Params, int]) -> Params:
    """Mean of each parameter over the clients that have it; w where no client has it.

    answers: pairs of a sum of trained parameters and the number of clients in it.
    """
    totals = zeros_like(w)
    holders = tree_map(lambda p: p.new_zeros(()), w)
    for sums, number in answers:
        for name, total in sums.items():
            totals[name], holders[name] = totals[name] + total, holders[name] + number
    return masked_mean(w, totals, holders)


def learnt(result: Aggregate) -> tuple[Params, int]:
    """Sum of the parameters that clients trained, and the number of these clients."""
    return (result.up["w"], int(result.contributed.sum())) if result.contributed.any() else ({}, 0)
