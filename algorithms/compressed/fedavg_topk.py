"""FedAvg whose clients send the largest entries alone (Stich et al., "Sparsified SGD with Memory", 2018)."""

from typing import Any

import torch
from pydantic import Field

from hedgerow.algorithms.core.algorithm import Algorithm, beyond
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, count, flat, like, sub, zeros_like
from hedgerow.algorithms.optim.local_sgd import LocalSGD, minimise
from hedgerow.algorithms.optim.server_optimizer import ServerStep
from hedgerow.algorithms.transforms.sparse_vectors import dense, top_k


class FedAvgTopK(Algorithm):
    """A client sends the K largest entries of how its model moved, and remembers the others for the next time."""

    class Hyper(LocalSGD):
        entries: int = Field(1000, ge=1, description="K, entries that a client sends, with their indices")
        error_feedback: bool = Field(True, description="remember what was left out; else it is lost")
        server: ServerStep = ServerStep()

    def init_server(self) -> Tree:
        w = self.task.init()
        return {"w": w, "optimizer": self.hyper.server.init(w)}

    def init_client(self) -> Tree:
        return {"residual": zeros_like(flat(self.task.init()))}

    def incompatibility(self) -> str | None:
        return beyond(self.task.init(), "entries", self.hyper.entries)

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        w = server["w"]
        found = yield Exchange(self.train, {"w": w}, cohort.clients, batches=self.hyper.batches, reduce="stack")
        values = found.up["values"] / len(found.up["values"])
        moved = dense({"values": values.flatten(), "indices": found.up["indices"].flatten()}, count(w))
        w, optimizer = self.hyper.server.step(w, add(w, like(moved, w)), server["optimizer"])
        return {"w": w, "optimizer": optimizer}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, loss = minimise(self.task.loss, down["w"], data, hp)
        moved = flat(sub(w, down["w"])) + state["residual"]
        message = top_k(moved, hp.entries)
        left = moved - dense(message, len(moved)) if hp.error_feedback else torch.zeros_like(moved)
        return message, {"residual": left}, {"loss": loss}
