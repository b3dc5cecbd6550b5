"""Count sketches of updates (Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with Sketching",
2020).
"""

from functools import lru_cache
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.parts import Wire
from hedgerow.algorithms.core.pytree import Tree, count, exceeds_size, flat
from hedgerow.algorithms.core.pytree import like as shaped
from hedgerow.algorithms.transforms.sketches import CountSketch
from hedgerow.algorithms.transforms.sparse_vectors import dense
from hedgerow.algorithms.transforms.transform import Transform


class Sketch(Transform):
    """Sends count sketches of client updates. Momentum and error feedback stay on the server as sketches, from which
    the server extracts the k largest entries.
    """

    encodes = True

    rows: int = Field(2, ge=1, description="rows of a sketch")
    columns: int = Field(500, ge=1, description="columns of a sketch")
    entries: int = Field(100, ge=1, description="k, number of entries of the aggregated update")
    server_lr: float = Field(1.0, gt=0, description="eta, server learning rate")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="rho, server momentum")
    sketch_seed: int = Field(0, ge=0, description="seed of the hash functions, shared by all clients")

    def incompatibility(self, like: Tree) -> str | None:
        return exceeds_size(like, "entries", self.entries)

    def init_server(self, like: Tree) -> Tree:
        empty = torch.zeros(self.rows, self.columns)
        return {"momentum": empty, "error": empty}

    def client(self, hp: Any, update: Tree, state: Tree, key: Tensor | None) -> tuple[Tree, Tree]:
        u = flat(update)
        return {"table": self._hashes(len(u), u.device).sketch(u)}, state

    def server(
        self, update: Tree, state: Tree, like: Tree, key: int, clients: int, bound: float | None = None
    ) -> tuple[Tree, Tree]:
        hashes = self._hashes(count(like), torch.device("cpu"))
        momentum = self.server_momentum * state["momentum"] + update["table"]
        error = state["error"] + self.server_lr * momentum
        heavy_hitters = hashes.heavy(error, self.entries)
        step = dense(heavy_hitters, count(like))
        # Clears the momentum of the extracted entries, which would move them again.
        momentum = momentum.scatter(1, hashes.buckets[:, heavy_hitters["indices"].long()], 0.0)
        return shaped(step, like), {"momentum": momentum, "error": error - hashes.sketch(step)}

    def wire(self, wire: Wire) -> Wire:
        return Wire(self.rows * self.columns)

    def _hashes(self, d: int, device: torch.device) -> CountSketch:
        return drawn_hashes(d, self.rows, self.columns, self.sketch_seed, device)


@lru_cache(maxsize=8)
def drawn_hashes(d: int, rows: int, columns: int, seed: int, device: torch.device) -> CountSketch:
    """Returns the hash functions, which every process draws from the seed."""
    hashes = CountSketch.draw(d, rows, columns, seed)
    return hashes._replace(buckets=hashes.buckets.to(device), signs=hashes.signs.to(device))
