"""Server for online learning: a stream of tasks, one per round, with the same interface as rounds over clients."""

from functools import partial
from typing import Any

import numpy as np

from hedgerow.algorithms.core.messages import ExchangeSteps
from hedgerow.algorithms.core.pytree import count
from hedgerow.algorithms.online.online_algorithm import Online
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.runtime.exchange_costs import CommunicationCost, Delivery
from hedgerow.platform.runtime.middleware_order import through
from hedgerow.platform.runtime.server import FederatedServer
from hedgerow.platform.runtime.shards import EVALUATION
from hedgerow.platform.storage.history import RoundRecord


class OnlineServer(FederatedServer):
    """Predicts on the task of the round, is scored on it, and only then learns it (thesis, 5.2).

    Record entries per round: test_accuracy and test_loss of the model adapted to the new task; ctm, the mean of these
    accuracies so far; memory of past tasks (memory_vectors, in models, memory_tasks, memory_bytes); with
    `evaluation.efficiency` the number of samples needed (efficiency_points; the largest number tried if
    efficiency_reached is 0). Every `evaluation.every` rounds: ltm and ltm_loss, of the model adapted anew to each task
    so far.
    """

    def __init__(self, experiment: Experiment, algorithm: ComposedAlgorithm, partition: Partition, dataset: Dataset):
        super().__init__(experiment, algorithm, partition, test_samples=0)
        assert isinstance(algorithm.inner, Online)
        self.online = algorithm.inner
        # Tasks after the last round are not used, not even by the offline competitor.
        self.population = experiment.rounds
        self.sample_bytes = dataset.x_train[0].nbytes + dataset.y_train[0].nbytes

    def quarantine(self, client: int) -> None:
        """Raise RuntimeError: a task of a stream cannot be excluded."""
        raise RuntimeError(f"round {self.round + 1}: task {client} crashes its worker process every time")

    def _next(self, number: int) -> ExchangeSteps:
        task = np.array([number - 1])
        scores = yield from self._timed("evaluation", self._score(self.state, number, task, keeps_predictions=True))
        if self.experiment.evaluation.efficiency:
            scores |= yield from self._timed("evaluation", self._efficiency(number, task))
        state, record, _ = yield from self._timed("training", self._train(number, task))
        # Nothing is transmitted.
        record |= CommunicationCost().as_dict() | {"transmissions": 0.0} | scores
        # Running mean of the accuracies, updated from the previous mean.
        before = self.history[-1]["ctm"] if self.history else 0.0
        record["ctm"] = before + (record["test_accuracy"] - before) / number
        record |= self._memory(state, number, task)
        if self._is_evaluated(number):
            all_so_far = self._score(state, number, np.arange(number), EVALUATION + 100)
            past = yield from self._timed("evaluation", all_so_far)
            record |= {"ltm": past["test_accuracy"], "ltm_loss": past["test_loss"]}
        return state, record

    def _score(
        self,
        state: Any,
        number: int,
        clients: np.ndarray,
        first: int = EVALUATION,
        keeps_predictions: bool = False,
    ) -> ExchangeSteps:
        """Mean accuracy and loss over the test samples of some tasks."""
        cohort = self._cohort(number, clients)
        evaluation = self.algorithm.evaluate(state, cohort)
        delivery = Delivery(cohort, self.variant, first)
        run = self._with_predictions if keeps_predictions else through
        _, result = yield from run(evaluation, delivery)
        metrics = result.metrics
        return {
            "test_accuracy": float(np.mean(metrics["correct"] / metrics["samples"])),
            "test_loss": float(np.mean(metrics["loss"] / metrics["samples"])),
        }

    def _efficiency(self, number: int, task: np.ndarray) -> ExchangeSteps:
        """Smallest number of samples of the task with which the adapted model reaches the threshold."""
        config, cohort = self.experiment.evaluation.efficiency, self._cohort(number, task)
        assert config is not None
        efficiency = partial(self.online.efficiency, points=config.points)
        generator = self.algorithm.run(efficiency, self.state, cohort)
        results = yield from through(generator, Delivery(cohort, self.variant, EVALUATION + 50))
        enough = [
            points
            for points, result in zip(config.points, results, strict=True)
            if result.metrics["correct"][0] >= config.threshold * result.metrics["samples"][0]
        ]
        return {"efficiency_points": min(enough, default=config.points[-1]), "efficiency_reached": float(bool(enough))}

    def _memory(self, state: Any, number: int, task: np.ndarray) -> RoundRecord:
        """Memory that the server keeps from round to round."""
        model = count(state["w"])
        vectors = sum(count(tree) for tree in state.values() if isinstance(tree, dict)) / model
        tasks = self.online.kept(state, self._cohort(number, task))
        size = 4 * model * vectors + tasks * int(self.sizes[0]) * self.sample_bytes
        return {"memory_vectors": vectors, "memory_tasks": tasks, "memory_bytes": int(size)}
