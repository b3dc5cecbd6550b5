"""B-MOML: MOML with a small buffer of past tasks (thesis, 5.2)."""

from typing import Literal

import torch
from pydantic import Field

from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree, add, scale, sub, tree_map, zeros_like
from hedgerow.algorithms.online.moml import MOML

EMPTY = -1


class BMOML(MOML):
    """MOML on the mean of F over a window: the task of the round and the tasks in the buffer [Acar2023]."""

    class Hyper(MOML.Hyper):
        alpha: float = Field(1.0, ge=0, description="weight of the quadratic penalty; 0: only the window")
        buffer: int = Field(5, ge=0, description="B, number of past tasks whose samples are kept; 0 is MOML")
        policy: Literal["latest", "random"] = Field(
            "latest",
            description="tasks that are kept: the latest; or each new task with probability `keep`, in place of the "
            "oldest",
        )
        keep: float = Field(0.5, gt=0, le=1, description="p of `policy: random`; the buffer is filled first")
        state_update: Literal["linear", "exact"] = Field(
            "linear",
            description="mean gradient of the tasks in the window; linear: from the stationarity condition of the "
            "regularised loss (0 without a penalty); exact: from one stored gradient per task",
        )

    def init_server(self) -> Tree:
        w, size = self.task.init(), self.hyper.buffer
        server = {"w": w, "v": self.task.init(), "lam": zeros_like(w)}
        if self.hyper.state_update == "exact":
            # lam of the latest tasks, including the current one; rows are 0 until there are enough tasks.
            server["lams"] = tree_map(lambda leaf: leaf.new_zeros((size + 1, *leaf.shape)), w)
            server["learnt"] = torch.zeros((), dtype=torch.int64)
        return server | {"buffer": torch.full((size,), EMPTY)}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        alpha, buffer = self.hyper.alpha, server["buffer"]
        past_tasks = buffer[buffer != EMPTY].tolist()
        task = int(cohort.clients[0])
        result = yield self.learn({key: server[key] for key in ("w", "v", "lam")}, cohort, (*past_tasks, task))
        w = result.up["w"]
        new = {"w": w, "buffer": self.pushed(buffer, task, cohort)}
        if self.hyper.state_update == "exact":
            result = yield self.look(w, cohort)
            latest = result.up["gradient"]
            new["lams"] = tree_map(lambda ring, leaf: torch.cat([ring[1:], leaf[None]]), server["lams"], latest)
            new["learnt"] = server["learnt"] + 1
            new["lam"] = tree_map(lambda ring: ring.sum(0) / new["learnt"].clamp(max=len(ring)), new["lams"])
        else:
            latest = new["lam"] = add(server["lam"], sub(w, server["v"]), -alpha)
        new["v"] = scale(add(add(server["v"], w), latest, -1 / alpha), 0.5) if alpha else server["v"]
        return new

    def pushed(self, buffer: torch.Tensor, task: int, cohort: Cohort) -> torch.Tensor:
        """Buffer after the round, oldest task first."""
        full = bool((buffer != EMPTY).all())
        if full and self.hyper.policy == "random" and cohort.uniform("buffer") >= self.hyper.keep:
            return buffer
        return torch.cat([buffer, buffer.new_tensor([task])])[1:]

    def kept(self, server: Tree, cohort: Cohort) -> int:
        return int((server["buffer"] != EMPTY).sum())
