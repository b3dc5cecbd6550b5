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
            seed, resources = self.experiment.seed, self.experiment.resources
            executor = InlineExecutor(Worker(hosted, dataset, partition, seed, device, resources))
        self.run = FederatedRun(self.experiment, algorithm, partition, len(dataset.y_test), executor, checkpoints)
        self._saved: tuple[int, Path] | None = None

    def advance(self, seconds: float) -> tuple[list[Record], bool]:
        """Run rounds for about `seconds`, at least one; returns their records, and whether the run is at its end."""
        records: list[Record] = []
        until = time.perf_counter() + seconds
        while not self.done:
            records.append(self.one_round())
            if time.perf_counter() >= until:
                break
        return records, self.done

    def one_round(self) -> Record:
        """Run one round, and save it when the schedule says so."""
        record = next(self.run)
        every = self.experiment.checkpoints.every
        if self.done or (every and record["round"] % every == 0):
            self.save()
        return record

    def save(self) -> Path:
        """Save the present round, unless that is done already; returns the checkpoint's folder."""
        if self._saved is None or self._saved[0] != self.run.round:
            self._saved = (self.run.round, self.run.save())
        return self._saved[1]

    def load(self, checkpoint: Path) -> None:
        """Go on from the checkpoint of another run of the same task."""
        self.run.load(checkpoint)
        self._saved = None

    @property
    def done(self) -> bool:
        """Whether all rounds are run."""
        return self.run.round >= self.experiment.rounds

    def plans(self) -> dict[str, Any]:
        """How each step is run (loop or vmap, chunk size), once it is known."""
        return self.run.state_dict()["progress"]["plans"]

    def parameters(self) -> Tree:
        """The parameters that are reported, as arrays."""
        return tree_map(lambda leaf: leaf.numpy(), self.run.algorithm.evaluate_params(self.run.server))
