"""Centralised reference: SGD on the pooled training samples of all clients (thesis, appendix A.1.1)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from hedgerow.algorithms.core.algorithm import Algorithm, mean_statistics
from hedgerow.algorithms.core.client_data import Batch, BatchSpec, ClientData
from hedgerow.algorithms.core.messages import POOL, Aggregate, Cohort, Exchange, Exchanges
from hedgerow.algorithms.core.pytree import Tree, stack, tree_map, zeros_like
from hedgerow.algorithms.optim.local_sgd import LocalOptimizer, minimize


class Central(Algorithm):
    """Centralised SGD; a round is `epochs` passes over the pooled data of all clients, and nothing is transmitted
    [Acar2023].

    Clients are not sampled. Momentum persists across rounds, as in one run of SGD.

    With `starts` > 1, several models train side by side on the same mini-batches, in one program. They are independent:
    the gradient of the sum of their losses with respect to one model is the gradient of that model's own loss. Scores
    are means over the models.
    """

    trains_on = "pool"
    training_steps: ClassVar[tuple[str, ...]] = ("train",)

    moved: ClassVar[tuple[str, ...]] = ("w",)
    """Branches of the server state that are trained, each with its own momentum."""

    class Hyper(LocalOptimizer):
        momentum: float = Field(0.0, ge=0, lt=1, description="heavy-ball momentum, which persists across rounds")
        starts: int = Field(
            1,
            ge=1,
            le=10_000,
            description="number of models trained side by side, each from its own initial parameters",
        )

    def incompatibility(self) -> str | None:
        if self.hyper.starts > 1 and self.hyper.clip_norm is not None:
            return "algorithm.clip_norm: models trained side by side would be clipped together; set it to null"
        return super().incompatibility()

    def init_server(self) -> Tree:
        return {"w": self._side_by_side([self.task.init()] * self.hyper.starts)}

    def remembering(self, server: Tree) -> Tree:
        """Adds a momentum, initialised to 0, for all trained branches to the server state, unless it has one."""
        if not self.hyper.momentum or "momentum" in server:
            return server
        return {**server, "momentum": {name: zeros_like(server[name]) for name in self.moved if name in server}}

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        server = self.remembering(self.started(server, cohort))
        result = yield Exchange(self.train, server, POOL, batches=self.batches(cohort), site="pool")
        return {**server, **result.up}

    def batches(self, cohort: Cohort) -> dict[str, BatchSpec]:
        return self.hyper.batches

    def train(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        memory = dict(down["momentum"]["w"]) if "momentum" in down else None
        momentum = {} if memory is None else {"momentum": {"w": memory}}

        def total(w: Tree, batch: Batch) -> Tensor:
            return self.each(lambda w: self.task.loss(w, batch), w).sum()

        w, value = minimize(total, down["w"], data, hp, memory=memory)
        return {"w": w, **momentum}, state, {"loss": value / hp.starts}

    # ---- models side by side ----------------------------------------------------------------------------------------

    def started(self, server: Tree, cohort: Cohort) -> Tree:
        """Gives models that are trained side by side their own initial parameters, in the first round."""
        if cohort.round > 1 or self.hyper.starts == 1:
            return server
        seeds = [cohort.seed_for(f"start {number}") for number in range(self.hyper.starts)]
        return {**server, "w": self._side_by_side([self.task.init(seed) for seed in seeds])}

    def each(self, function: Callable[..., Any], *trees: Tree) -> Any:
        """Output of a function for each model, with a leading dimension of models; without it for a single model."""
        return function(*trees) if self.hyper.starts == 1 else torch.func.vmap(function)(*trees)

    def _side_by_side(self, trees: list[Tree]) -> Tree:
        return trees[0] if self.hyper.starts == 1 else stack(*trees)

    def evaluate_params(self, server: Tree) -> Tree:
        """Parameters of the model; of the first one, if there are several."""
        return server["w"] if self.hyper.starts == 1 else tree_map(lambda p: p[0], server["w"])

    def scored(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def batch_norm_statistics(
        self, hp: Any, down: Tree, state: Tree, data: ClientData
    ) -> tuple[Tree, Tree, dict[str, Any]]:
        def statistics(batch: Batch) -> Tree:
            return self.each(lambda w: self.task.statistics(w, batch), down["w"])

        return mean_statistics(statistics, data), state, {}

    def evaluate_client(self, hp: Any, down: Tree, state: Tree, data: ClientData) -> tuple[Tree, Tree, dict[str, Any]]:
        # Several models have no single prediction.
        task = self.task if self.hyper.starts == 1 else replace(self.task, scored=None)
        scores = task.tally(lambda batch: self.each(lambda w: task.score(w, batch), down["w"]), data)
        up: Tree = {name: scores[name] for name in ("correct", "samples") if name in scores}
        return up, state, {name: values.mean() for name, values in scores.items()}

    def evaluation_metrics(self, server: Tree, test: Aggregate) -> dict[str, float]:
        """Number of models that ended in each minimum, if several are trained and the model names its minima."""
        minima = getattr(self.task.module, "minima", None)
        if minima is None or self.hyper.starts == 1:
            return {}
        members = minima(server["w"], test.up["correct"] / test.up["samples"])
        return {f"minimum_{name}": float(which.sum()) for name, which in members.items()}
