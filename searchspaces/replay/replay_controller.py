"""Runs schedulers and searchers of Ray Tune over recorded curves, in a deterministic order: a trial only reads the next
rounds of its curve.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.replay.simulated_controller import SimulatedController

Curve = Sequence[RoundRecord]
"""Records of all rounds of a configuration, with `client_rounds`."""


class ReplayController:
    """Runs trials over curves until all are finished or the budget is spent.

    Trials train in parallel on a number of slots, where a round takes as much time as it has clients. Trials that
    report at the same time do so in the order in which they started to train.

    scheduler, searcher: see SimulatedController. slots: trials that train at once. rounds: rounds of each trial.
    stride: rounds between two reports. budget: maximum number of client rounds; the replay ends before the first report
    that it does not cover. on_report: called with a trial after each of its reports.
    """

    def __init__(
        self,
        scheduler: TrialScheduler | None,
        searcher: Searcher | None,
        slots: int,
        rounds: int,
        stride: int,
        budget: float | None,
        on_report: Callable[[Trial], None],
    ):
        self.controller = SimulatedController(scheduler, searcher, train=self._train)
        self.slots, self.rounds, self.stride, self.on_report = slots, rounds, stride, on_report
        self.budget = math.inf if budget is None else budget
        if isinstance(scheduler, HedgeScheduler):
            scheduler.cluster_resources = lambda: {"CPU": float(slots)}
        self.curves: dict[str, Curve] = {}
        self.reached: dict[str, int] = {}
        """Round that each trial has reached, by its identifier."""
        self.spent = 0.0
        """Client rounds of all reports so far."""
        self.is_exhausted = False
        self._training: list[tuple[float, int, Trial]] = []
        self._now, self._order = 0.0, count()

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were added."""
        return self.controller.trials

    def replay(self, curves: Sequence[Curve]) -> None:
        """Run one trial for each curve."""
        for number, curve in enumerate(curves):
            self._add(f"replay_{number:05d}", {}, curve)
        self._run(lambda: None)

    def propose(self, samples: int, curve_of: Callable[[dict[str, Any]], Curve], limited: bool) -> None:
        """Run trials that the searcher proposes, as many as `samples`.

        curve_of: curve of a proposed configuration. limited: whether the searcher waits while all slots are taken;
        otherwise, while a trial waits for a slot.
        """
        searcher = self.controller.search_alg.searcher

        def ask() -> None:
            while len(self.trials) < samples:
                waiting = [trial for trial in self.trials if trial.status == Trial.PENDING]
                active = [trial for trial in self.trials if trial.status == Trial.RUNNING] + waiting
                if (len(active) >= self.slots) if limited else waiting:
                    return
                identifier = f"replay_{len(self.trials):05d}"
                config = searcher.suggest(identifier)
                if not isinstance(config, dict):
                    return
                self._add(identifier, config, curve_of(config["overrides"]))

        self._run(ask)

    def _add(self, identifier: str, config: dict[str, Any], curve: Curve) -> None:
        trial = Trial("replay", config=config, trial_id=identifier, stub=True)
        self.curves[identifier], self.reached[identifier] = curve, 0
        self.controller.add(trial)

    def _run(self, ask: Callable[[], None]) -> None:
        while not self.is_exhausted:
            ask()
            self._start()
            if not self._training:
                return
            self._now, _, trial = heapq.heappop(self._training)
            if trial.status == Trial.RUNNING:
                self._report(trial)

    def _start(self) -> None:
        """Start trials on free slots: the scheduler's choice first, then the others that wait, in their order."""
        before: list[str] = []
        while before != (before := [trial.status for trial in self.trials]):
            chosen = self.controller.choose()
            waiting = [trial for trial in [chosen, *self.trials] if trial and trial.status == Trial.PENDING]
            if waiting and sum(trial.status == Trial.RUNNING for trial in self.trials) < self.slots:
                waiting[0].set_status(Trial.RUNNING)
                self._train(waiting[0])

    def _train(self, trial: Trial) -> None:
        cost = sum(record["client_rounds"] for record in self._next(trial))
        heapq.heappush(self._training, (self._now + cost, next(self._order), trial))

    def _next(self, trial: Trial) -> Curve:
        """Records up to the next report of a trial."""
        start = self.reached[trial.trial_id]
        return self.curves[trial.trial_id][start : start + self.stride - start % self.stride]

    def _report(self, trial: Trial) -> None:
        """Report the next rounds of a trial, and do what the scheduler decides."""
        records = self._next(trial)
        cost = sum(record["client_rounds"] for record in records)
        if self.spent + cost > self.budget:
            self.is_exhausted = True
            return
        self.spent += cost
        self.reached[trial.trial_id] += len(records)
        self.controller.report(trial, self._result(trial, records))
        self.on_report(trial)

    def _result(self, trial: Trial, records: Curve) -> dict[str, Any]:
        """Result as `FederatedTrainable` reports it: the last evaluated round, and all new records."""
        reached = self.reached[trial.trial_id]
        evaluated: Iterator[RoundRecord] = filter(_is_evaluated, reversed(self.curves[trial.trial_id][:reached]))
        number = int(trial.trial_id.rpartition("_")[2])
        return {
            **next(evaluated, {}),
            "round": reached,
            "records": [{"expert": number, **record} for record in records],
            "done": reached >= self.rounds,
            "trial_id": trial.trial_id,
        }


def _is_evaluated(record: RoundRecord) -> bool:
    return "test_accuracy" in record
