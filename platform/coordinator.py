"""The coordinator: drives the rounds of one run and saves it. A plain object inline, an actor on Ray."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.algorithms.online.online_algorithm import Online
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.factory import build_algorithms
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.engine import Plan
from hedgerow.platform.executors import Executor, InlineExecutor
from hedgerow.platform.federated import FederatedRun
from hedgerow.platform.learner import Learner, Record
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.online import OnlineLearner
from hedgerow.platform.process import settle
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.worker import Worker


class Coordinator:
    """Runs rounds and keeps their checkpoints.

    experiments: resolved files as plain values; several ones differ in floats of their algorithm only, and share the
    work of each round. executor: None for one worker in this process. checkpoints: the folder of each experiment's; it
    goes on from the last one that lies there. Steps are run under the plans that run.json records, one level up; new
    plans are recorded there before the round that used them is reported. claim: see FederatedRun.
    """

    def __init__(
        self,
        experiments: list[dict[str, Any]],
        dataset: Dataset,
        partition: Partition,
        executor: Executor | None,
        checkpoints: list[Path],
        claim: Claim | None = None,
    ):
        parsed = [parse_experiment(values) for values in experiments]
        learners = [
            make_learner(experiment, algorithm, partition, dataset)
            for experiment, algorithm in zip(parsed, build_algorithms(parsed, dataset, partition), strict=True)
        ]
        self._folders = [RunFolder(folder.parent) for folder in checkpoints]
        self._recorded: list[dict[str, Plan]] = []
        for learner, folder in zip(learners, self._folders, strict=True):
            known = folder.record().get("plans", {}) if folder.exists else {}
            self._recorded.append({step: Plan(**plan) for step, plan in known.items()})
            learner.plans |= self._recorded[-1]
        executor = executor or in_this_process(parsed, dataset, partition)
        self.run = FederatedRun(learners, executor, list(checkpoints), claim)
        self._constants = [folder.constants if folder.exists else None for folder in self._folders]
        self._told = learners[0].round

    def advance(self, seconds: float, told: int | None = None) -> tuple[list[Record], bool]:
        """Run rounds for about `seconds`, at least one.

        Returns the first experiment's records after the round `told`, or after the last that was returned before, and
        whether the run is at its end.
        """
        until = time.perf_counter() + seconds
        while not self.run.done:
            self.one_round()
            if time.perf_counter() >= until:
                break
        after = self._told if told is None else told
        # The record of round r is at r - 1.
        records = self.run.learners[0].history[after:]
        self._told = after + len(records)
        return records, self.run.done

    def one_round(self) -> dict[int, Record]:
        """Run one round, and save it when the schedule says so; returns the record of each experiment, by number."""
        # Not at the start: what the constructor of an actor raises does not reach the user as it is.
        for learner, expected in zip(self.run.learners, self._constants, strict=True):
            compare_constants(learner.algorithm.task.module, expected)
        records = next(self.run)
        self._record_plans()
        every = self.run.learners[0].experiment.checkpoints.every
        if self.run.done or (every and self.run.round % every == 0):
            self.run.save()
        return records

    def _record_plans(self) -> None:
        for number, (learner, folder) in enumerate(zip(self.run.learners, self._folders, strict=True)):
            if learner.plans != self._recorded[number] and folder.exists:
                self._recorded[number] = dict(learner.plans)
                folder.update(plans={step: asdict(plan) for step, plan in learner.plans.items()})

    def save(self) -> None:
        """Write a checkpoint of the round at which it is."""
        self.run.save()

    def reload(self) -> None:
        """Go on from the last checkpoints, which somebody else has written."""
        self.run.reload()

    @property
    def workers(self) -> int:
        """Shares into which the clients' work is dealt."""
        return self.run.executor.workers

    @property
    def gathered(self) -> list[int]:
        """Numbers of client actors: it has none."""
        return []

    def plans(self) -> dict[str, Any]:
        """How each step of the first experiment is run (loop or vmap, chunk size), once it is known."""
        return self.run.learners[0].state_dict()["progress"]["plans"]

    def warnings(self) -> list[str]:
        """A sentence about each damaged checkpoint that was passed over."""
        return self.run.warnings

    def parameters(self) -> Tree:
        """The first experiment's parameters that are reported, as arrays."""
        learner = self.run.learners[0]
        return tree_map(lambda leaf: leaf.numpy(), learner.algorithm.evaluate_params(learner.server))


def make_learner(experiment: Experiment, algorithm: Algorithm, partition: Partition, dataset: Dataset) -> Learner:
    """Of rounds over clients, or over the tasks of a stream."""
    if algorithm.learns_stream:
        return OnlineLearner(experiment, cast(Online, algorithm), partition, dataset)
    return Learner(experiment, algorithm, partition, len(dataset.y_test))


def in_this_process(
    experiments: list[Experiment], dataset: Dataset, partition: Partition, workers: int = 1, measures: bool = True
) -> InlineExecutor:
    """One worker here, which does the work of `workers`. measures: see InlineExecutor."""
    first = experiments[0]
    settle(first.resources.threads, gpus=first.resources.gpu)
    algorithms = build_algorithms(experiments, dataset, partition)
    worker = Worker(algorithms, dataset, partition, first.seed, first.resources, first.evaluation.follows)
    return InlineExecutor(worker, workers, measures)
