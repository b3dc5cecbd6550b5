"""The online loop: a stream of tasks, one per round, behind the same interface as rounds over clients."""

from typing import Any

import numpy as np

from hedgerow.algorithms.core.pytree import count
from hedgerow.algorithms.online.online_algorithm import Online
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.communication import CommunicationCost
from hedgerow.platform.runtime.server import ExchangeSteps, FederatedServer
from hedgerow.platform.runtime.shards import EVALUATION
from hedgerow.platform.storage.history import Record


class OnlineServer(FederatedServer):
    """Shows its model, meets the round's task, is scored on it, and only then learns it (thesis, 5.2).

    Records, per round: test_accuracy and test_loss, of the model adapted to the new task; ctm, the mean of these
    accuracies so far; what is kept of the past (memory_vectors, in models, memory_tasks, memory_bytes); with
    `evaluation.efficiency` the samples needed (efficiency_points; the most that were tried where efficiency_reached is
    0). Every `evaluation.every` rounds: ltm and ltm_loss, of the model adapted anew to each task so far.
    """

    algorithm: Online

    def __init__(self, experiment: Experiment, algorithm: Online, partition: Partition, dataset: Dataset):
        super().__init__(experiment, algorithm, partition, test_samples=0)
        # Tasks that no round comes to are nobody's, not even the offline competitor's.
        self.population = experiment.rounds
        self.sample_bytes = dataset.x_train[0].nbytes + dataset.y_train[0].nbytes

    def quarantine(self, client: int) -> None:
        """Of a stream no task can be left out. Raises RuntimeError."""
        raise RuntimeError(f"round {self.round + 1}: the process that works on task {client} dies each time")

    def _next(self, number: int) -> ExchangeSteps:
        task = np.array([number - 1])
        suffered = yield from self._timed("evaluation", self._score(self.state, number, task))
        if self.experiment.evaluation.efficiency:
            suffered |= yield from self._timed("evaluation", self._efficiency(number, task))
        state, record, _ = yield from self._timed("training", self._train(number, task))
        # Nothing is transmitted.
        record |= CommunicationCost().as_dict() | {"transmissions": 0.0} | suffered
        # The mean of so many accuracies, from the last mean.
        before = self.history[-1]["ctm"] if self.history else 0.0
        record["ctm"] = before + (record["test_accuracy"] - before) / number
        record |= self._memory(state or self.state, number, task)
        if self._is_evaluated(number):
            all_so_far = self._score(state or self.state, number, np.arange(number), EVALUATION + 100)
            past = yield from self._timed("evaluation", all_so_far)
            record |= {"ltm": past["test_accuracy"], "ltm_loss": past["test_loss"]}
        return state, record

    def _score(self, state: Any, number: int, clients: np.ndarray, first: int = EVALUATION) -> ExchangeSteps:
        """Mean accuracy and loss over the test samples of some tasks."""
        cohort = self._cohort(number, clients)
        _, result = yield from self._drive(self.algorithm.evaluate(state, cohort), cohort, [], first)
        metrics = result.metrics
        return {
            "test_accuracy": float(np.mean(metrics["correct"] / metrics["samples"])),
            "test_loss": float(np.mean(metrics["loss"] / metrics["samples"])),
        }

    def _efficiency(self, number: int, task: np.ndarray) -> ExchangeSteps:
        """The fewest samples of the task with which the adapted model reaches the threshold."""
        wanted, cohort = self.experiment.evaluation.efficiency, self._cohort(number, task)
        assert wanted is not None
        generator = self.algorithm.efficiency(self.state, cohort, wanted.points)
        results = yield from self._drive(generator, cohort, [], first=EVALUATION + 50)
        enough = [
            points
            for points, result in zip(wanted.points, results, strict=True)
            if result.metrics["correct"][0] >= wanted.threshold * result.metrics["samples"][0]
        ]
        return {"efficiency_points": min(enough, default=wanted.points[-1]), "efficiency_reached": float(bool(enough))}

    def _memory(self, state: Any, number: int, task: np.ndarray) -> Record:
        """What the server keeps from round to round."""
        model = count(state["w"])
        vectors = sum(count(tree) for tree in state.values() if isinstance(tree, dict)) / model
        tasks = self.algorithm.kept(state, self._cohort(number, task))
        kept = 4 * model * vectors + tasks * int(self.sizes[0]) * self.sample_bytes
        return {"memory_vectors": vectors, "memory_tasks": tasks, "memory_bytes": int(kept)}
