"""FetchSGD (Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with Sketching", 2020)."""

from typing import Any

import torch
from pydantic import Field

from hedgerow.algorithms.core.algorithm import Algorithm, beyond
from hedgerow.algorithms.core.client_data import ClientData
from hedgerow.algorithms.core.messages import Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, count, flat, like, sub
from hedgerow.algorithms.optim.local_sgd import LocalSGD, minimise
from hedgerow.algorithms.transforms.sketches import CountSketch
from hedgerow.algorithms.transforms.sparse_vectors import dense


class FetchSGD(Algorithm):
    """Clients send count sketches of how their models moved; momentum and what was left out live on the server, as
    sketches, from which it takes the k largest entries.
    """

    class Hyper(LocalSGD):
        rows: int = Field(2, ge=1, description="rows of a sketch")
        columns: int = Field(500, ge=1, description="its columns")
        entries: int = Field(100, ge=1, description="k, entries by which the model moves in a round")
        server_lr: float = Field(1.0, gt=0, description="eta, of the server's step")
        server_momentum: float = Field(0.9, ge=0, lt=1, description="rho")
        sketch_seed: int = Field(0, ge=0, description="of the hash functions, which all know")

    def init_server(self) -> Tree:
        empty = torch.zeros(self.hyper.rows, self.hyper.columns)
        return {"w": self.task.init(), "momentum": empty, "error": empty}

    def incompatibility(self) -> str | None:
        return beyond(self.task.init(), "entries", self.hyper.entries)

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        w, hyper = server["w"], self.hyper
        hashes = CountSketch.draw(count(w), hyper.rows, hyper.columns, hyper.sketch_seed)
        found = yield Exchange(
            self.train, {"w": w}, cohort.clients, batches=hyper.batches, known={"hashes": hashes.tree}
        )
        momentum = hyper.server_momentum * server["momentum"] + found.up["table"]
        error = server["error"] + hyper.server_lr * momentum
        heavy = hashes.heavy(error, hyper.entries)
        moved = dense(heavy, count(w))
        # Momentum of what has just moved would move it again.
        momentum = momentum.scatter(1, hashes.buckets[:, heavy["indices"].long()], 0.0)
        return {"w": add(w, like(moved, w)), "momentum": momentum, "error": error - hashes.sketch(moved)}

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        w, loss = minimise(self.task.loss, down["w"], data, hp)
        hashes = CountSketch(**down["hashes"], width=hp.columns)
        return {"table": hashes.sketch(flat(sub(w, down["w"])))}, state, {"loss": loss}
