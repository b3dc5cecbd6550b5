"""FedSep (Li, Huang, "Resolving the Tug-of-War: A Separation of Communication and Learning in Federated Learning",
2023, Algorithm 1). Decoders and encoders are in separate modules.
"""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import ONCE, Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree, sub
from hedgerow.algorithms.optim.local_sgd import minimize


class FedSep(Algorithm):
    """Separates the transmitted x from the learnt y: a client decodes x into y, trains y, and encodes the change of y.

    `encode` returns -(dy/dx)' v. For a descent direction v this is a gradient, so the server subtracts the clients'
    mean.
    """

    parts: ClassVar[Parts] = {"train": {"x": Part("x", "difference")}}
    optimizes = "x"

    def init_server(self) -> Tree:
        return {"x": self.start()}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        x = server["x"]
        result = yield Exchange(
            self.train,
            {"x": x},
            cohort.clients,
            batches=self.batches,
            local_inputs_per_client={"own": self.own(cohort.clients)},
        )
        return {"x": sub(x, result.up["x"])}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        x = {**down["x"], **down["own"]}
        y, trace = self.decode(hp, x, data)
        new_y, loss = minimize(lambda y, batch: self.learning_loss(x, y, batch), y, data, hp)
        return {"x": self.encode(hp, x, y, trace, sub(new_y, y), data)}, state, {"loss": loss}

    # ---- evaluation: every client decodes its own model -------------------------------------------------------------

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        if not self.is_personal:
            return (yield from super().evaluate(server, cohort))
        clients = cohort.clients if self.task.is_scored else cohort.clients[:0]
        batches = {**self.decoded_from, "test": replace(ONCE, split="held_out")}
        own = {"own": self.own(clients)}
        return (
            yield [
                Exchange(self.evaluate_client, {}, np.arange(0), site="test"),
                Exchange(self.score_decoded, {"x": server["x"]}, clients, batches=batches, local_inputs_per_client=own),
            ]
        )

    def score_decoded(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        x = {**down["x"], **down["own"]}
        y, _ = self.decode(hp, x, data)
        return self.evaluate_client(hp, {"w": self.model(x, y)}, state, data)

    # ---- interface of an application --------------------------------------------------------------------------------

    @property
    def batches(self) -> dict[str, BatchSpec]:
        """Mini-batches of a client's round; the client learns from "train"."""
        return self.hyper.batches

    def start(self) -> Tree:
        """Initial x, before round 1."""
        raise NotImplementedError

    def own(self, clients: np.ndarray) -> Tree:
        """Decoder inputs that each of these clients has for itself, one row per client; added to x."""
        return {}

    @property
    def decoded_from(self) -> dict[str, BatchSpec]:
        """Mini-batches that the decoder draws."""
        return {}

    def model(self, x: Tree, y: Tree) -> Tree:
        """Parameters that are scored."""
        return y

    def decode(self, hp: Any, x: Tree, data: ClientData) -> tuple[Tree, Any]:
        """Returns y and a trace of the decoding, which the encoder uses."""
        raise NotImplementedError

    def learning_loss(self, x: Tree, y: Tree, batch: Batch) -> Any:
        """Loss f^m on a batch, 0-d."""
        raise NotImplementedError

    def encode(self, hp: Any, x: Tree, y: Tree, trace: Any, moved: Tree, data: ClientData) -> Tree:
        """-(dy/dx)' moved, with the shape of x."""
        raise NotImplementedError
