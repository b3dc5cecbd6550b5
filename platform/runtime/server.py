"""Server of one experiment: its state, and its rounds and evaluations as sequences of exchanges."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from hedgerow.algorithms.core.messages import SPENT, Cohort, Exchange, Exchanges, ExchangeSteps, Predictions
from hedgerow.algorithms.core.pytree import Tree, add, count, difference
from hedgerow.algorithms.slots.middleware import ComposedAlgorithm
from hedgerow.algorithms.slots.slot_compatibility import OPTIMIZER
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.system_heterogeneity import Simulation
from hedgerow.platform.data import Partition
from hedgerow.platform.data.sampling import poisson_clients, sample_clients
from hedgerow.platform.data.validation_noise import ValidationNoise
from hedgerow.platform.runtime.evaluation import (
    AVERAGE,
    PredictionKeeper,
    evaluate,
    histograms,
    output_keeper,
    scored_state,
    training_metrics,
    validate,
)
from hedgerow.platform.runtime.exchange_costs import Delivery, NoContributionsError, SampleCounter
from hedgerow.platform.runtime.middleware_order import through
from hedgerow.platform.runtime.participation import (
    ParticipationSimulator,
    add_download,
    attackers_among,
    client_seconds,
    with_clients,
)
from hedgerow.platform.runtime.shards import EVALUATION
from hedgerow.platform.runtime.worker import initial_state, test_shards
from hedgerow.platform.schedules.events import IN_FLIGHT, VERSIONS, EventQueue, groups
from hedgerow.platform.schedules.stale_round import StaleRound
from hedgerow.platform.storage.history import History, RoundRecord
from hedgerow.platform.tracking.decisions import Decisions

MOST_QUARANTINED = 0.1
"""Largest share of the clients that may be left out because they crash their process."""


class FederatedServer:
    """Server state, progress and records of one experiment. A round is a function of (server state, round number).

    variant: index of this server where a coordinator drives several variants.
    """

    def __init__(self, experiment: Experiment, algorithm: ComposedAlgorithm, partition: Partition, test_samples: int):
        self.experiment = experiment
        self.algorithm = algorithm
        self.variant = 0
        self.sizes = partition.train_sizes
        self.population = len(partition)
        self.cohort_size = experiment.cohort_size(self.population)
        self.sample_size = experiment.sample_size(self.population)
        self.account = experiment.privacy_account(self.population)
        self.splits = partition.splits()
        self.tracks_client_models = experiment.evaluation.follows
        self.initial_client_state = initial_state(algorithm, self.tracks_client_models)
        self.test_shards = test_shards(test_samples)
        # Clients that every evaluation scores: a uniform sample of the population.
        scored = min(experiment.evaluation.clients, self.population)
        self._evaluated = sample_clients(experiment.seed, 0, self.population, scored)
        pool, selection = partition.server_validation, partition.selection_sizes
        self.validation_shards = 0 if pool is None else test_shards(len(pool))
        self._validated = np.flatnonzero([] if selection is None else selection)
        self.running_variants = 1
        """Number of servers that run their rounds side by side: each counts an equal part of the time as its own."""
        self.keeps_predictions = False
        """Whether the predictions of each evaluation are kept in `predictions`. They change no other number."""
        # Set by searches: number of a private trial, noise on the validation scores, and whether records count the
        # samples that clients draw.
        self.trial: int | None = None
        self.noise: ValidationNoise | None = None
        self.counts_samples = False
        self.events: EventQueue | None = None
        if experiment.schedule:
            simulation, concurrency = experiment.simulation or Simulation(), experiment.concurrency(self.population)
            self.events = EventQueue(experiment.schedule, simulation, experiment.seed, self.population, concurrency)
        # Client id -> first round without this client. Kept when the server returns to a checkpoint.
        self.quarantined: dict[int, int] = {}
        self.warn: Callable[[str], None] = lambda sentence: None
        """Receives a sentence when a logger fails that decides."""
        self.restart()

    @property
    def participants(self) -> int:
        """Largest number of clients that can take part in the run."""
        sampled = self.population if self.account or self.events else self.sample_size
        return min(self.population, self.experiment.rounds * sampled)

    def restart(self) -> None:
        """Return to the state before round 1."""
        self.state = self.algorithm.init_server()
        if self.tracks_client_models:
            self.state[AVERAGE] = self.algorithm.task.init()
        if self.events:
            self.state |= {IN_FLIGHT: self.events.initial(), VERSIONS: {}}
        self.round = self.committed = 0
        self._contributed = True
        """Whether a client contributed to the round that runs; otherwise, the states of clients stay."""
        self.seconds = self.transmissions = 0.0
        self.history = History()
        self.decisions = Decisions(self.experiment, (), lambda sentence: self.warn(sentence))
        # Clients' accuracies on their own samples in the last evaluation, in ascending order.
        self.accuracies: list[float] = []
        # Samples of the last evaluation, by class and predicted class.
        self.confusion: list[list[int]] | None = None
        # Predictions of the latest round on the samples that select hyperparameters; None: it was not evaluated.
        self.predictions: Predictions | None = None
        # Seconds of all rounds so far, by activity.
        self.clock = {"training": 0.0, "evaluation": 0.0}

    def state_dict(self) -> dict[str, Any]:
        """State and progress (JSON); `load_state_dict` takes them together with the history."""
        progress = {
            "round": self.round,
            "seconds": self.seconds,
            "transmissions": self.transmissions,
            "histograms": histograms(self.algorithm.inner, self.state),
            "client_accuracies": self.accuracies,
            "confusion_matrix": self.confusion,
            "clock": self.clock,
            "quarantined": {str(client): round for client, round in self.quarantined.items()},
        }
        return {"server": self.state, "progress": progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a `state_dict`. Raises UserError when entries of the server state are missing or of other shapes."""
        progress, server = state["progress"], state["server"]
        if self.algorithm.middleware and OPTIMIZER in self.state:
            # Population-based training may continue a checkpoint with other settings of the server optimiser.
            server = {**server, OPTIMIZER: {**self.state[OPTIMIZER], **server.get(OPTIMIZER, {})}}
        # Which versions are in flight differs between rounds.
        expected = {key: entry for key, entry in self.state.items() if key != VERSIONS}
        if mismatch := difference(expected, server):
            raise UserError(
                f"the checkpoint of round {progress['round']} {mismatch} the model and the algorithm of the "
                "experiment; restore the experiment file, or start a new run"
            )
        self.state = server
        self.round = self.committed = progress["round"]
        self.seconds = progress["seconds"]
        self.transmissions = progress["transmissions"]
        self.history = progress["history"]
        self.decisions = Decisions(self.experiment, self.history, lambda sentence: self.warn(sentence))
        self.accuracies = progress.get("client_accuracies", [])
        self.confusion = progress.get("confusion_matrix") if self.experiment.evaluation.confusion_matrix else None
        self.clock = dict(progress.get("clock", self.clock))
        self.quarantined |= {int(client): round for client, round in progress.get("quarantined", {}).items()}

    def quarantine(self, client: int) -> None:
        """Exclude a client from the next round on. Raises RuntimeError if too many are excluded."""
        self.quarantined[client] = self.round + 1
        if len(self.quarantined) > MOST_QUARANTINED * self.population:
            culprits = ", ".join(map(str, sorted(self.quarantined)))
            raise RuntimeError(
                f"round {self.round + 1}: these clients crash their worker process every time: {culprits}; fix the "
                f"cause: at most {MOST_QUARANTINED:.0%} of the clients are left out"
            )

    @property
    def done(self) -> bool:
        """Whether all rounds have run, or targets or a logger have ended the run early."""
        return self.decisions.is_over or self.round >= self.experiment.rounds

    def run_round(self) -> ExchangeSteps:
        """Run the next round. When the generator ends, the record of the round is the last of `history`."""
        start = time.perf_counter()
        number = self.round + 1
        self.predictions = None
        state, record = yield from self._next(number)
        seconds = self.seconds + (time.perf_counter() - start) / self.running_variants
        record["seconds"] = seconds
        if self._is_evaluated(number):
            self.decisions.check(record)
        self.decisions.take(record)
        if self.decisions.is_over and not self._is_tested(number):
            record |= yield from self._timed("evaluation", self._test(state, number))
            record["seconds"] = seconds = self.seconds + (time.perf_counter() - start) / self.running_variants
        # The round counts only now, with every aggregate received: if a worker is lost above, nothing has changed.
        self.committed = number if self._contributed else self.committed
        self.state, self.round, self.transmissions = state, number, record["transmissions"]
        self.seconds = seconds
        self.history.append(record)

    @property
    def scored_model(self) -> Tree:
        """Parameters of the model that the evaluations score."""
        return self.algorithm.evaluate_params(scored_state(self.state))

    def _next(self, number: int) -> ExchangeSteps:
        """State after the round, and the record of the round."""
        sampled = clients = np.zeros(0, int)
        if self.events is None:
            sampled = self._sampled(number)
            clients = self._without_quarantined(sampled, number)
        train = self._train(number, clients) if self.events is None else self._step(self.events, number)
        state, record, cost = yield from self._timed("training", train)
        if self.account:
            record["epsilon"] = self.account.epsilon(number)
        record |= self.algorithm.round_metrics(state)
        model_size = count(self.algorithm.evaluate_params(self.state))
        record |= cost.as_dict() | self._spent(record)
        if len(excluded := self._excluded(number)):
            record["quarantined"] = len(sampled) - len(clients) if self.events is None else len(excluded)
        record["transmissions"] = self.transmissions + cost.transmissions(self.cohort_size, model_size)
        if self._is_evaluated(number):
            # Client states of this round are not final yet, and evaluation must not touch them.
            record |= yield from self._timed("evaluation", self._evaluate(state, number))
        return state, record

    def _sampled(self, number: int) -> np.ndarray:
        """Clients that are sampled for a round."""
        seed = self.experiment.seed
        if self.account:
            return poisson_clients(seed, number, self.population, self.cohort_size / self.population)
        return sample_clients(seed, number, self.population, self.sample_size)

    def _train(self, number: int, clients: np.ndarray) -> ExchangeSteps:
        """Run the algorithm's round; returns the new state, the first record entries, and the cost."""
        cohort = self._cohort(number, clients)
        simulated = None
        if self.experiment.simulation:
            simulated = ParticipationSimulator(self.experiment.simulation, cohort, self.splits)
            first = next(self.algorithm.round(self.state, cohort), [])
            cohort = simulated.answering(with_clients(first), self.cohort_size)
        counter, delivery = self._counter(), Delivery(cohort, self.variant)
        state, self._contributed = self.state, False
        # A private round without clients is one of noise alone.
        if len(cohort.clients) or self.account:
            exchanges = self.algorithm.round(self.state, cohort)
            try:
                state = yield from through(exchanges, delivery, counter, simulated)
            except NoContributionsError as error:
                state = self.algorithm.without_contributions(self.state, cohort, error.exchanged)
            else:
                self._contributed = True
                if self.tracks_client_models:
                    average = self.state[AVERAGE]
                    for aggregate in chain.from_iterable(delivery.results):
                        if aggregate.client_model_delta:
                            average = add(average, aggregate.client_model_delta, 1 / self.population)
                    state = {**state, AVERAGE: average}
        record, cost = _first_entries(number, len(cohort.clients), counter, delivery), delivery.cost
        if simulated:
            cost.add([simulated.cost])
            before = self.history[-1]["simulated_seconds"] if self.history else 0.0
            record |= (own := simulated.record())
            record["simulated_seconds"] = before + own["simulated_round_seconds"]
        return state, record, cost

    def _step(self, events: EventQueue, number: int) -> ExchangeSteps:
        """Run one asynchronous server step; returns the same as `_train`."""
        before = self.state

        def first(clients: np.ndarray) -> tuple[Cohort, list[Exchange]]:
            cohort = self._cohort(number, clients)
            return cohort, with_clients(next(self.algorithm.round(before, cohort), []))

        def seconds(clients: np.ndarray) -> np.ndarray:
            return client_seconds(events.simulation, self.splits, *first(clients))

        step = events.next_step(before[IN_FLIGHT], number, seconds, self._excluded(number))
        arrived = groups(step.arrivals)
        answered = np.array([flight.client for flight in step.arrivals], int)
        cohort = self._cohort(number, np.unique(answered))
        counter, delivery = self._counter(), Delivery(cohort, self.variant)
        state, self._contributed = before, True
        if arrived:
            parts, hyper = self.algorithm.inner.parts, self.algorithm.hyper
            stale = StaleRound(events.schedule, number - 1, arrived, before[VERSIONS], parts, hyper)
            with suppress(NoContributionsError):
                state = yield from through(self.algorithm.round(before, cohort), delivery, stale, counter)
        versions = {key: message for key, message in before[VERSIONS].items() if int(key) in step.versions}
        messages = [first(clients)[1][0] for clients in step.started]
        if number - 1 in step.versions:
            versions[str(number - 1)] = messages[0].broadcast
        state = {**state, IN_FLIGHT: step.in_flight, VERSIONS: versions}
        # Clients receive the model when they start, which may be rounds before they arrive.
        cost = delivery.cost
        cost.scalars_down = cost.bytes_down = 0
        for message in messages:
            add_download(cost, message, np.ones(len(message.clients), bool))
        record = _first_entries(number, len(answered), counter, delivery)
        record |= attackers_among(events.simulation, cohort, answered)
        return state, record | step.record(number - 1, self.history[-1] if self.history else {}), cost

    def _counter(self) -> SampleCounter | None:
        return SampleCounter(self.splits) if self.counts_samples else None

    def _excluded(self, number: int) -> np.ndarray:
        return np.array([client for client, since in self.quarantined.items() if since <= number], int)

    def _spent(self, record: RoundRecord) -> RoundRecord:
        """Compute-cost metrics of the run so far, by name: the sum over all rounds, including this one."""
        before = self.history[-1] if self.history else {}
        names = {name: None for known in (before, record) for name in known if name.startswith(SPENT)}
        return {name: before.get(name, 0.0) + record.get(name, 0.0) for name in names}

    def _evaluate(self, state: Tree, number: int) -> ExchangeSteps:
        """Scores of a server state, by name."""
        if self._is_tested(number):
            record = yield from self._test(state, number)
        else:
            record = self.algorithm.inner.server_metrics(scored_state(state))
        if self.experiment.task.validation:
            clients = self._without_quarantined(self._evaluated, number)
            record |= yield from self._validate(scored_state(state), number, clients)
        return record

    def _test(self, state: Tree, number: int) -> ExchangeSteps:
        """Scores of a server state on test samples and on the samples of clients, by name."""
        clients = self._without_quarantined(self._evaluated, number)
        scored = scored_state(state)
        record = yield from self._score(scored, number, clients, self.experiment.evaluation.confusion_matrix)
        if self.tracks_client_models:
            own = yield from self._score(state, number, clients[:0])
            record |= {f"server_{name}": value for name, value in own.items()}
        return record

    def test_scores(self) -> ExchangeSteps:
        """Scores of the current state on test samples and on the samples of clients, as an evaluation has them."""
        return (yield from self._test(self.state, self.round))

    def _validate(self, state: Tree, number: int, evaluated: np.ndarray) -> ExchangeSteps:
        """Scores of a server state on the validation samples. evaluated: clients of the evaluation."""
        clients = self._without_quarantined(self._validated, number)
        clients = self.noise.subset(clients, number) if self.noise else clients
        # Statistics of a model's normalisation come from the same clients as in the evaluation on the test set.
        cohort = self._cohort(number, clients if len(clients) and not self.algorithm.task.is_static else evaluated)
        cohort = replace(cohort, test_shards=self.validation_shards)
        everyone = self._cohort(number, np.union1d(cohort.clients, clients))
        try:
            # In the same positions as the evaluation on the test set: models that a client derives are the same.
            evaluation = self.algorithm.evaluate(state, cohort)
            scores = yield from self._with_predictions(
                validate(evaluation, clients, self.algorithm.task.scoring), Delivery(everyone, self.variant, EVALUATION)
            )
            return self.noise.apply(scores, number) if self.noise else scores
        except NoContributionsError:
            return dict.fromkeys((f"validation_{name}" for name in self.algorithm.task.scoring.measures), math.nan)

    def _with_predictions(self, evaluation: Exchanges, delivery: Delivery) -> ExchangeSteps:
        """Run an evaluation, and set `predictions`, if they are to be kept."""
        keeper = PredictionKeeper(self.algorithm) if self.keeps_predictions else output_keeper(self.algorithm)
        result = yield from through(evaluation, delivery, keeper)
        if keeper and self.keeps_predictions:
            # An evaluation that scores several models has no single prediction.
            self.predictions = keeper.predictions[0] if len(keeper.predictions) == 1 else None
        return result

    def _score(self, state: Tree, number: int, clients: np.ndarray, confuses: bool = False) -> ExchangeSteps:
        cohort = self._cohort(number, clients)
        delivery, keeper = Delivery(cohort, self.variant, EVALUATION), output_keeper(self.algorithm, confuses)
        evaluation = evaluate(self.algorithm, state, cohort, confuses)
        try:
            record, accuracies, confusion = yield from through(evaluation, delivery, keeper)
        except NoContributionsError:
            # The model has diverged so far that even the statistics of its normalisation are not finite.
            self.confusion = None
            return dict.fromkeys((f"test_{name}" for name in self.algorithm.task.scoring.measures), math.nan)
        self.accuracies = self.accuracies if accuracies is None else accuracies
        self.confusion = confusion or self.confusion
        return record

    def _timed(self, what: str, steps: ExchangeSteps) -> ExchangeSteps:
        """Run `steps`, and add the elapsed seconds to the clock."""
        start = time.perf_counter()
        result = yield from steps
        self.clock[what] += (time.perf_counter() - start) / self.running_variants
        return result

    def _is_evaluated(self, number: int) -> bool:
        return number % self.experiment.evaluation.every == 0 or number == self.experiment.rounds

    def _is_tested(self, number: int) -> bool:
        """Whether the evaluation of a round scores test samples."""
        return self.experiment.evaluation.test == "every" or number == self.experiment.rounds

    def _without_quarantined(self, clients: np.ndarray, number: int) -> np.ndarray:
        return clients[~np.isin(clients, self._excluded(number))] if self.quarantined else clients

    def _cohort(self, number: int, clients: np.ndarray) -> Cohort:
        return Cohort(
            number,
            clients,
            self.sizes[clients],
            self.population,
            self.test_shards,
            self.experiment.seed,
            population_sizes=self.sizes,
            trial=self.trial,
        )


def _first_entries(number: int, participants: int, counter: SampleCounter | None, delivery: Delivery) -> RoundRecord:
    record = {"round": number, "participants": participants, **training_metrics(delivery.results)}
    return record if counter is None else {**record, "sample_gradients": counter.drawn}
