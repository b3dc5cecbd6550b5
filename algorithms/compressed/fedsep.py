"""FedSep (Li, Huang, "Resolving the Tug-of-War: A Separation of Communication and Learning in Federated Learning",
2023): its Algorithm 1, without decoders and encoders, which have files of their own.
"""

from typing import Any, ClassVar

import numpy as np

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.client_data import EVAL_BATCH_SIZE, Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.parts import Part, Parts
from hedgerow.algorithms.core.pytree import Tree, sub
from hedgerow.algorithms.optim.local_sgd import minimize


class FedSep(Algorithm):
    """What is transmitted, x, is not what is learnt, y: a client decodes x into y, learns, and encodes how y moved.

    `encode` returns -(dy/dx)' v, which for a descent v is a gradient: the server subtracts the clients' mean.
    """

    parts: ClassVar[Parts] = {"train": {"x": Part("x", "difference")}}
    optimizes = "x"

    def init_server(self) -> Tree:
        return {"x": self.start()}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        x = server["x"]
        found = yield Exchange(
            self.train,
            {"x": x},
            cohort.clients,
            batches=self.batches,
            local_inputs_per_client={"own": self.own(cohort.clients)},
        )
        return {"x": sub(x, found.up["x"])}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        x = {**down["x"], **down["own"]}
        y, trace = self.decode(hp, x, data)
        learnt, loss = minimize(lambda y, batch: self.learning_loss(x, y, batch), y, data, hp)
        return {"x": self.encode(hp, x, y, trace, sub(learnt, y), data)}, state, {"loss": loss}

    # ---- evaluation, where every client decodes for itself ----------------------------------------------------------

    def evaluate(self, server: Tree, cohort: Cohort) -> Exchanges:
        if not self.is_personal:
            return (yield from super().evaluate(server, cohort))
        clients = cohort.clients if self.task.is_scored else cohort.clients[:0]
        batches = {**self.decoded_from, "test": BatchSpec(EVAL_BATCH_SIZE, shuffle=False, split="held_out")}
        own = {"own": self.own(clients)}
        return (
            yield [
                Exchange(self.evaluate_client, {}, np.arange(0), on="test"),
                Exchange(self.score_decoded, {"x": server["x"]}, clients, batches=batches, local_inputs_per_client=own),
            ]
        )

    def score_decoded(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        x = {**down["x"], **down["own"]}
        y, _ = self.decode(hp, x, data)
        return self.evaluate_client(hp, {"w": self.model(x, y)}, state, data)

    # ---- what an application says -----------------------------------------------------------------------------------

    @property
    def batches(self) -> dict[str, BatchSpec]:
        """The mini-batches of a client's round: "train" is learnt from."""
        return self.hyper.batches

    def start(self) -> Tree:
        """x before round 1."""
        raise NotImplementedError

    def own(self, clients: np.ndarray) -> Tree:
        """What each of these clients knows of its own decoder, a row for each; it is added to x."""
        return {}

    @property
    def decoded_from(self) -> dict[str, BatchSpec]:
        """Those of the mini-batches that the decoder draws."""
        return {}

    def model(self, x: Tree, y: Tree) -> Tree:
        """The parameters that are scored."""
        return y

    def decode(self, hp: Any, x: Tree, data: ClientData) -> tuple[Tree, Any]:
        """y, and what the encoder wants to know of how it came about."""
        raise NotImplementedError

    def learning_loss(self, x: Tree, y: Tree, batch: Batch) -> Any:
        """f^m on a batch; 0-d."""
        raise NotImplementedError

    def encode(self, hp: Any, x: Tree, y: Tree, trace: Any, moved: Tree, data: ClientData) -> Tree:
        """-(dy/dx)' moved, of x's shape."""
        raise NotImplementedError
