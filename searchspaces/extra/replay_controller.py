"""Runs schedulers and searchers of Ray Tune over recorded curves, in a deterministic order: a trial only reads the next
rounds of its curve.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.promotion_scheduler import PromotionScheduler
from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.spaces.search_section import SearchKind
from hedgerow.searchspaces.spaces.smoothing import report_of, score_of
from hedgerow.searchspaces.tune.simulated_controller import SimulatedController

Curve = Sequence[RoundRecord]
"""Records of all rounds of a configuration, with `client_rounds`."""


class ReplayController:
    """Runs trials over curves until all are finished or the budget is spent.

    Trials train in parallel on a number of slots, where a round takes as much time as it has clients. Trials that
    report at the same time do so in the order in which they started to train.

    scheduler, searcher: see SimulatedController. slots: trials that train at once. rounds: rounds of each trial.
    stride: rounds between two reports. budget: maximum number of client rounds; the replay ends before the first report
    that it does not cover. search: its metric in reports is smoothed. on_report: called with the position of a trial
    after each of its reports.
    """

    def __init__(
        self,
        scheduler: TrialScheduler | None,
        searcher: Searcher | None,
        slots: int,
        rounds: int,
        stride: int,
        budget: float | None,
        search: SearchKind,
        on_report: Callable[[int], None],
    ):
        self.controller = SimulatedController(scheduler, searcher, train=self._train)
        self.slots, self.rounds, self.stride, self.on_report = slots, rounds, stride, on_report
        self.search = search
        self.budget = math.inf if budget is None else budget
        if isinstance(scheduler, HedgeScheduler):
            scheduler.cluster_resources = lambda: {"CPU": float(slots)}
        self.curves: list[Curve] = []
        self.reached: list[int] = []
        """Round that each trial has reached."""
        self.spent = 0.0
        """Client rounds of all reports so far."""
        self._training: list[tuple[float, int, Trial]] = []
        self._now, self._order = 0.0, count()

    @property
    def trials(self) -> list[Trial]:
        """All trials, in the order in which they were added."""
        return self.controller.trials

    def replay(self, curves: Sequence[Curve]) -> None:
        """Run one trial for each curve."""
        for curve in curves:
            self._add({}, curve)
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
                config = searcher.suggest(_identifier(len(self.trials)))
                if not isinstance(config, dict):
                    return
                self._add(config, curve_of(config["overrides"]))

        self._run(ask)

    def _add(self, config: dict[str, Any], curve: Curve) -> None:
        trial = Trial("replay", config=config, trial_id=_identifier(len(self.trials)), stub=True)
        self.curves.append(curve)
        self.reached.append(0)
        self.controller.add(trial)

    def _run(self, ask: Callable[[], None]) -> None:
        while True:
            ask()
            self._start()
            if not self._training:
                return
            self._now, _, trial = heapq.heappop(self._training)
            if trial.status == Trial.RUNNING and not self._report(trial):
                return

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
        heapq.heappush(self._training, (self._now + _cost(self._next(trial)), next(self._order), trial))

    def _next(self, trial: Trial) -> Curve:
        """Records up to the next report of a trial."""
        start = self.reached[_position(trial)]
        return self.curves[_position(trial)][start : start + self.stride - start % self.stride]

    def _report(self, trial: Trial) -> bool:
        """Report the next rounds of a trial, and do what the scheduler decides; False if the budget does not cover
        them. The result is as of `FederatedTrainable`: the last evaluated round, and all new records.
        """
        number, records = _position(trial), self._next(trial)
        if self.spent + _cost(records) > self.budget:
            return False
        self.spent += _cost(records)
        self.reached[number] = reached = self.reached[number] + len(records)
        result = {
            **report_of(self.curves[number][:reached], self.search.metric, self.search.report_smooth),
            "round": reached,
            "records": [{"expert": number, **record} for record in records],
            "done": reached >= self.rounds,
            "trial_id": trial.trial_id,
        }
        self.controller.report(trial, result)
        self.on_report(number)
        return True


def _identifier(position: int) -> str:
    return f"replay_{position:05d}"


def _position(trial: Trial) -> int:
    return int(trial.trial_id.rpartition("_")[2])


def _cost(records: Curve) -> float:
    return sum(record["client_rounds"] for record in records)


class OnlineScore:
    """Mean over client rounds of the test accuracy of a tuner's current choice, from its first report on.

    The choice is Hedge's leader, or else the trial with the best smoothed metric. It holds until the next report.
    On a stream it is scored on the task after its latest round, which the choice did not know.

    search: its objective. scheduler: of Hedge or promotion: its leader is deployed.
    """

    def __init__(self, search: SearchKind, scheduler: TrialScheduler | None, is_stream: bool):
        self.search, self.scheduler, self.is_stream = search, scheduler, is_stream
        self.changes: list[tuple[float, int, int]] = []
        """(client rounds, position of the trial, its round) of each change of the deployed model."""
        self._values: dict[int, float] = {}
        self._accuracy: float | None = None
        self._total = self._time = self._since = 0.0

    def look(self, controller: ReplayController, position: int) -> None:
        """Update after a report of the trial at `position`."""
        self.score(controller.spent)
        curves, reached = controller.curves, controller.reached
        value = score_of(curves[position][: reached[position]], self.search.metric, self.search.smooth)
        if value is not None:
            self._values[position] = -value if self.search.mode == "max" else value
        chosen = self._choice(reached)
        if chosen is None:
            return
        after = reached[chosen]
        if not self.changes or self.changes[-1][1:] != (chosen, after):
            self.changes.append((controller.spent, chosen, after))
        scored = curves[chosen][after : after + 1] if self.is_stream else reversed(curves[chosen][:after])
        accuracy = next((record["test_accuracy"] for record in scored if "test_accuracy" in record), None)
        # A model that has diverged predicts nothing.
        self._accuracy = accuracy if accuracy is None or math.isfinite(accuracy) else 0.0

    def score(self, until: float) -> float | None:
        """Mean up to a number of client rounds; None if no test accuracy was known."""
        if self._accuracy is not None:
            self._total += self._accuracy * (until - self._since)
            self._time += until - self._since
        self._since = until
        return self._total / self._time if self._time else self._accuracy

    def _choice(self, reached: list[int]) -> int | None:
        if isinstance(self.scheduler, PromotionScheduler):
            return self.scheduler.leader
        if isinstance(self.scheduler, HedgeScheduler):
            self.scheduler.rounds.settle()
            leader = int(self.scheduler.rounds.weights.argmax())
            return leader if reached[leader] else None
        finite = {position: value for position, value in self._values.items() if math.isfinite(value)}
        return min(finite, key=lambda position: finite[position]) if finite else None
