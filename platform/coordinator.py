"""The coordinator: drives the rounds of one run and saves it. A plain object inline, an actor on Ray."""

import time
from pathlib import Path
from typing import Any

from hedgerow.algorithms.trees import Tree, tree_map
from hedgerow.platform.build import build_algorithm
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.executors import Executor, InlineExecutor
from hedgerow.platform.experiment_file import parse_experiment
from hedgerow.platform.federated import FederatedRun, Record
from hedgerow.platform.process import settle
from hedgerow.platform.worker import Worker


class Coordinator:
    """Runs rounds and keeps their checkpoints.

    experiment: the resolved file as plain values. executor: None for one worker in this process.
    checkpoints: their folder; a run goes on from the last one that lies there.
    """

    def __init__(
        self,
        experiment: dict[str, Any],
        dataset: Dataset,
        partition: Partition,
        executor: Executor | None,
        checkpoints: Path,
    ):
        self.experiment = parse_experiment(experiment)
        algorithm = build_algorithm(self.experiment, dataset)
        if executor is None:
            settle(self.experiment.resources.threads)
            hosted = build_algorithm(self.experiment, dataset)
            device = "cuda" if self.experiment.resources.gpus_per_actor else "cpu"
            executor = InlineExecutor(Worker(hosted, dataset, partition, self.experiment.seed, device))
        self.run = FederatedRun(self.experiment, algorithm, partition, len(dataset.y_test), executor, checkpoints)

    def advance(self, seconds: float) -> tuple[list[Record], bool]:
        """Run rounds for about `seconds`, at least one; returns their records, and whether the run is at its end."""
        records: list[Record] = []
        until = time.perf_counter() + seconds
        every, rounds = self.experiment.checkpoints.every, self.experiment.rounds
        for record in self.run:
            records.append(record)
            if record["round"] == rounds or (every and record["round"] % every == 0):
                self.run.save()
            if time.perf_counter() >= until:
                break
        return records, self.run.round >= rounds

    def plans(self) -> dict[str, Any]:
        """How each step is run (loop or vmap, chunk size), once it is known."""
        return self.run.state_dict()["progress"]["plans"]

    def parameters(self) -> Tree:
        """The parameters that are reported, as arrays."""
        return tree_map(lambda leaf: leaf.numpy(), self.run.algorithm.evaluate_params(self.run.server))
