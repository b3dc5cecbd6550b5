"""TOE: train on everything (thesis, 5.3): one ordinary model of all samples so far, adapted only for evaluation."""

from dataclasses import replace
from typing import Any

from hedgerow.algorithms.core.client_data import BatchSpec
from hedgerow.algorithms.core.messages import Cohort, Exchanges
from hedgerow.algorithms.core.pytree import Tree
from hedgerow.algorithms.online.online_algorithm import Online


class TOE(Online):
    """Takes K steps per round on mini-batches from the union of all tasks so far [Acar2023]."""

    def round(self, server: Tree, cohort: Cohort) -> Exchanges:
        result = yield self.learn(server, cohort, range(cohort.round))
        return result.up

    def mini_batches(self, tasks: Any) -> BatchSpec:
        batches = super().mini_batches(tasks)
        return batches if batches.mixed else replace(batches, size=self.hyper.batch_size, mixed=True)

    def objective(self, hp: Any) -> Any:
        return self.task.loss

    def kept(self, server: Tree, cohort: Cohort) -> int:
        return cohort.round
