"""A learner: the server's side of one experiment, round by round, without a word about where its clients live."""

import math
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.messages import SPENT, Cohort, Exchange, Exchanges, Result
from hedgerow.algorithms.core.pytree import Tree, add, count
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.data import Partition
from hedgerow.platform.data.sampling import sample_clients
from hedgerow.platform.engine import Plan
from hedgerow.platform.ledger import Ledger
from hedgerow.platform.metrics import client_scores, model_scores, training_metrics
from hedgerow.platform.simulation import SimulatedRound, with_clients
from hedgerow.platform.tracking.history import History, Record
from hedgerow.platform.tracking.summary import is_done, reaches
from hedgerow.platform.worker import EVALUATION, test_shards

AVERAGE = "client_average"
"""In the server's state, where it is scored: the average of all clients' latest own models."""

BINS = 20
"""Of histograms."""


class NoContributors(Exception):  # noqa: N818
    """Every client of exchanges that run in parallel diverged: there is nothing to aggregate."""


@dataclass(frozen=True)
class Request:
    """An exchange that a learner wants carried out.

    number: its position within the round. committed: the last round whose client states are final. ledger: what the
    exchange transmits is charged to it.
    """

    exchange: Exchange
    cohort: Cohort
    number: int
    committed: int
    ledger: Ledger


Requests = Generator[list[Request], list[Result], Any]
"""Yields exchanges that may run in parallel, and is sent their results."""


class Learner:
    """Server state, progress and records of one experiment. A round is a function of (server state, round number)."""

    def __init__(self, experiment: Experiment, algorithm: Algorithm, partition: Partition, test_samples: int):
        self.experiment = experiment
        self.algorithm = algorithm
        self.sizes = partition.train_sizes
        self.population = len(partition)
        self.cohort_size = experiment.cohort_size(self.population)
        self.sample_size = experiment.sample_size(self.population)
        self.shares = partition.shares()
        self.follows = experiment.evaluation.follows
        self.stateless = not algorithm.init_client() and not self.follows
        self.test_shards = test_shards(test_samples)
        self.plans = {step: Plan(**plan.model_dump()) for step, plan in experiment.engine.plans.items()}
        self._evaluated = self._evaluation_cohort()
        # By client the round from which on it is left out. What was found out outlives a return to a checkpoint.
        self.quarantined: dict[int, int] = {}
        self.restart()

    def restart(self) -> None:
        """Back to the state before round 1."""
        self.server = self.algorithm.init_server()
        if self.follows:
            self.server[AVERAGE] = self.algorithm.task.init()
        self.round = self.committed = 0
        self.seconds = self.transmissions = 0.0
        self.history = History()
        # Those that were the first to reach a target.
        self._decisive: list[Record] = []
        # Of the last evaluation: the clients' accuracies on their own samples, from the lowest.
        self.accuracies: list[float] = []
        # Seconds of all rounds so far, by what they went into.
        self.clock = {"training": 0.0, "evaluation": 0.0}

    def state_dict(self) -> dict[str, Any]:
        """The server's tree and the progress (JSON), which `load_state_dict` takes together with the history."""
        progress = {
            "round": self.round,
            "seconds": self.seconds,
            "transmissions": self.transmissions,
            "plans": {step: asdict(plan) for step, plan in self.plans.items()},
            "histograms": self._histograms(),
            "client_accuracies": self.accuracies,
            "clock": self.clock,
            "quarantined": {str(client): round for client, round in self.quarantined.items()},
        }
        return {"server": self.server, "progress": progress}

    def _histograms(self) -> dict[str, dict[str, list[int]]]:
        """What the algorithm has to show, counted in `BINS` of equal width between 0 and 1."""
        shown = self.algorithm.histograms(self.server)
        return {
            title: {who: np.histogram(values.numpy(), BINS, (0, 1))[0].tolist() for who, values in parts.items()}
            for title, parts in shown.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        progress = state["progress"]
        self.server = state["server"]
        self.round = self.committed = progress["round"]
        self.seconds = progress["seconds"]
        self.transmissions = progress["transmissions"]
        self.plans |= {step: Plan(**plan) for step, plan in progress["plans"].items()}
        records = progress["history"]
        # Earlier versions kept the records themselves in their checkpoints.
        self.history = records if isinstance(records, History) else History(records)
        self._decisive = []
        if self.experiment.evaluation.stop:
            for record in self.history:
                self._note(record)
        self.accuracies = progress.get("client_accuracies", [])
        self.clock = dict(progress.get("clock", self.clock))
        self.quarantined |= {int(client): round for client, round in progress.get("quarantined", {}).items()}

    def quarantine(self, client: int) -> None:
        """Leave a client out from the next round on. Raises RuntimeError when that is more than the file allows."""
        self.quarantined[client] = self.round + 1
        share = self.experiment.resources.max_quarantined
        if len(self.quarantined) > share * self.population:
            culprits = ", ".join(map(str, sorted(self.quarantined)))
            raise RuntimeError(
                f"round {self.round + 1}: the process that works on any of these clients dies, each time: {culprits}; "
                f"resources.max_quarantined lets {share:g} of the clients be left out"
            )

    def _without_quarantined(self, clients: np.ndarray, number: int) -> np.ndarray:
        out = [client for client, since in self.quarantined.items() if since <= number]
        return clients[~np.isin(clients, out)] if out else clients

    @property
    def done(self) -> bool:
        """Whether all rounds are run, or the targets end the run before."""
        return is_done(self.experiment, [*self._decisive, *self.history[-1:]])

    def one_round(self) -> Requests:
        """Run the next round; when the generator ends, the round's record is the last of `history`."""
        start = time.perf_counter()
        number = self.round + 1
        server, record = yield from self._next(number)
        # Only now, with every answer in hand, does the round count: a worker lost above leaves all as it was.
        self.committed = self.committed if server is None else number
        self.server, self.round, self.transmissions = server or self.server, number, record["transmissions"]
        self.seconds += time.perf_counter() - start
        record["seconds"] = self.seconds
        self.history.append(record)
        self._note(record)

    def _note(self, record: Record) -> None:
        """Keep a record that is the first to reach a target: with the last one, it decides when the run is done."""
        wanted = self.experiment.evaluation
        if any(
            reaches(record, target, wanted.target_metric)
            and not any(reaches(known, target, wanted.target_metric) for known in self._decisive)
            for target in wanted.targets
        ):
            self._decisive.append(record)

    def _next(self, number: int) -> Requests:
        """The server's state after the round, or None where everybody diverged, and the round's record."""
        sampled = sample_clients(self.experiment.seed, number, self.population, self.sample_size)
        clients = self._without_quarantined(sampled, number)
        server, record, ledger = yield from self._timed("training", self._train(number, clients))
        model_size = count(self.algorithm.evaluate_params(self.server))
        record |= ledger.as_dict() | self._spent(record)
        if any(since <= number for since in self.quarantined.values()):
            record["quarantined"] = len(sampled) - len(clients)
        record["transmissions"] = self.transmissions + ledger.transmissions(self.cohort_size, model_size)
        if self._is_evaluated(number):
            # Client states of this round are not final yet, and evaluation must not touch them.
            record |= yield from self._timed("evaluation", self._evaluate(server or self.server, number))
        return server, record

    def _timed(self, what: str, requests: Requests) -> Requests:
        """The same, on the clock."""
        start = time.perf_counter()
        found = yield from requests
        self.clock[what] += time.perf_counter() - start
        return found

    def _train(self, number: int, clients: np.ndarray) -> Requests:
        """The algorithm's round: the new server's state or None, the beginning of the record, and the ledger."""
        cohort, ledger = self._cohort(number, clients), Ledger()
        results: list[list[Result]] = []
        simulated = None
        if self.experiment.simulation:
            simulated = SimulatedRound(self.experiment.simulation, cohort, self.shares)
            first = next(self.algorithm.round(self.server, cohort), [])
            cohort = simulated.begin(with_clients(first), self.cohort_size, ledger)
        server = None
        if len(cohort.clients):
            exchanges = self.algorithm.round(self.server, cohort)
            exchanges = simulated.timed(exchanges, cohort) if simulated else exchanges
            with suppress(NoContributors):
                server = yield from self._drive(exchanges, cohort, ledger, results)
                if self.follows:
                    server = {**server, AVERAGE: self._average(results)}
        record: Record = {"round": number, "participants": len(cohort.clients), **training_metrics(results)}
        return server, record | (self._simulated(simulated) if simulated else {}), ledger

    def _simulated(self, round: SimulatedRound) -> Record:
        """What the record says of a simulated round, with the seconds of all so far."""
        record = round.record()
        before = self.history[-1]["simulated_seconds"] if self.history else 0.0
        return record | {"simulated_seconds": before + record["simulated_round_seconds"]}

    def _spent(self, record: Record) -> Record:
        """What the run has computed so far, by name: the sum of the rounds', with this one's."""
        before = self.history[-1] if self.history else {}
        names = {name: None for known in (before, record) for name in known if name.startswith(SPENT)}
        return {name: before.get(name, 0.0) + record.get(name, 0.0) for name in names}

    def _is_evaluated(self, number: int) -> bool:
        return number % self.experiment.evaluation.every == 0 or number == self.experiment.rounds

    def _cohort(self, number: int, clients: np.ndarray) -> Cohort:
        seed = self.experiment.seed
        return Cohort(number, clients, self.sizes[clients], self.population, self.test_shards, seed)

    def _average(self, results: list[list[Result]]) -> Tree:
        """The average of all clients' latest own models after these exchanges."""
        average = self.server[AVERAGE]
        for result in chain.from_iterable(results):
            if result.moved:
                average = add(average, result.moved, 1 / self.population)
        return average

    def _evaluate(self, server: Tree, number: int) -> Requests:
        clients = self._without_quarantined(self._evaluated, number)
        if not self.follows:
            return (yield from self._score(server, number, clients))
        record = yield from self._score({**server, "w": server[AVERAGE]}, number, clients)
        own = yield from self._score(server, number, clients[:0])
        return record | {f"server_{name}": value for name, value in own.items()}

    def _score(self, server: Tree, number: int, clients: np.ndarray) -> Requests:
        cohort = self._cohort(number, clients)
        generator = self.algorithm.evaluate(server, cohort)
        try:
            test, local = yield from self._drive(generator, cohort, Ledger(), [], first=EVALUATION)
        except NoContributors:
            # The model is so far off that nobody can even say how to normalise.
            return {"test_accuracy": math.nan, "test_loss": math.nan}
        common = local if self.algorithm.is_personal else test
        record = model_scores(common)
        if len(local.kept):
            self.accuracies, own = client_scores(local, self.algorithm.is_personal)
            record |= own
        return record | self.algorithm.found(server, common) | self.algorithm.report(server)

    def _evaluation_cohort(self) -> np.ndarray:
        """The same clients every time, a uniform sample of the population."""
        wanted = min(self.experiment.evaluation.clients, self.population)
        return sample_clients(self.experiment.seed, 0, self.population, wanted)

    def _drive(
        self, generator: Exchanges, cohort: Cohort, ledger: Ledger, results: list[list[Result]], first: int = 0
    ) -> Requests:
        """Run an algorithm's generator to its end and return what it returns. first: number of its first exchange.

        results: receives those of each exchange, or of several in parallel. Raises NoContributors when all clients of
        these diverged.
        """
        reply: Any = None
        number = first
        while True:
            try:
                wanted = generator.send(reply)
            except StopIteration as stop:
                return stop.value
            exchanges = wanted if isinstance(wanted, list) else [wanted]
            ledger.exchanges += any(exchange.on == "clients" and len(exchange.clients) for exchange in exchanges)
            answers = yield [
                Request(exchange, cohort, number + i, self.committed, ledger) for i, exchange in enumerate(exchanges)
            ]
            results.append(answers)
            kept = np.concatenate([answer.kept for answer in answers])
            if len(kept) and not kept.any():
                generator.close()
                raise NoContributors
            reply = answers if isinstance(wanted, list) else answers[0]
            number += len(exchanges)
