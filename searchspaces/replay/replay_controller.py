"""A controller that runs schedulers and searchers of Ray Tune over recorded curves, in a deterministic order.

It makes the calls of `ray.tune.execution.tune_controller.TuneController` in the same order, without actors: a trial
only reads the next rounds of its curve.
"""

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.utils.util import flatten_dict

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler

Curve = Sequence[RoundRecord]
"""Records of all rounds of a configuration, with `client_rounds`."""


class ReplayController:
    """Runs trials over curves until all are finished or the budget is spent.

    Trials train in parallel on a number of slots, where a round takes as much time as it has clients. Trials that
    report at the same time do so in the order in which they started to train.

    scheduler: None: every trial runs to its last round. slots: trials that train at once. rounds: rounds of each trial.
    stride: rounds between two reports. budget: maximum number of client rounds; the replay ends before the first report
    that it does not cover. on_report: called with a trial after each of its reports.
    """

    def __init__(
        self,
        scheduler: TrialScheduler | None,
        slots: int,
        rounds: int,
        stride: int,
        budget: float | None,
        on_report: Callable[[Trial], None],
    ):
        # Any: schedulers are typed for Tune's own controller.
        self.scheduler: Any = scheduler or FIFOScheduler()
        self.slots, self.rounds, self.stride, self.on_report = slots, rounds, stride, on_report
        self.budget = math.inf if budget is None else budget
        if isinstance(self.scheduler, HedgeScheduler):
            self.scheduler.cluster_resources = lambda: {"CPU": float(slots)}
        self.trials: list[Trial] = []
        self.curves: dict[str, Curve] = {}
        self.reached: dict[str, int] = {}
        """Round that each trial has reached, by its identifier."""
        self.spent = 0.0
        """Client rounds of all reports so far."""
        self.is_exhausted = False
        self.search_alg = SimpleNamespace(searcher=None)
        self._training: list[tuple[float, int, Trial]] = []
        self._now, self._order = 0.0, count()

    # ---- methods that schedulers call ---------------------------------------------------------------------------

    def get_trials(self) -> list[Trial]:
        """All trials, in the order in which they were added."""
        return self.trials

    def pause_trial(self, trial: Trial, should_checkpoint: bool = True) -> None:
        """Free the slot of a trial, which may continue later."""
        trial.set_status(Trial.PAUSED)

    def stop_trial(self, trial: Trial) -> None:
        """End a trial."""
        if trial.status in (Trial.PENDING, Trial.PAUSED):
            self.scheduler.on_trial_remove(self, trial)
            result = None
        elif trial.status == Trial.RUNNING:
            result = flatten_dict(trial.last_result)
            self.scheduler.on_trial_complete(self, trial, result)
        else:
            return
        if self.search_alg.searcher is not None:
            self.search_alg.searcher.on_trial_complete(trial.trial_id, result=result)
        trial.set_status(Trial.TERMINATED)

    def _schedule_trial_train(self, trial: Trial) -> None:
        # Name of Tune's method, which `ray_private.continue_trial` calls.
        cost = sum(record["client_rounds"] for record in self._next(trial))
        heapq.heappush(self._training, (self._now + cost, next(self._order), trial))

    # ---- the replay ---------------------------------------------------------------------------------------------

    def replay(self, curves: Sequence[Curve]) -> None:
        """Run one trial for each curve."""
        for number, curve in enumerate(curves):
            self._add(f"replay_{number:05d}", {}, curve)
        self._run(lambda: None)

    def propose(
        self, searcher: Searcher, samples: int, curve_of: Callable[[dict[str, Any]], Curve], limited: bool
    ) -> None:
        """Run trials that a searcher proposes, as many as `samples`.

        curve_of: curve of a proposed configuration. limited: whether the searcher waits while all slots are taken;
        otherwise, while a trial waits for a slot.
        """
        self.search_alg.searcher = searcher

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
        trial.create_placement_group_factory()
        self.curves[identifier], self.reached[identifier] = curve, 0
        self.trials.append(trial)
        self.scheduler.on_trial_add(self, trial)

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
            chosen = self.scheduler.choose_trial_to_run(self)
            if chosen is not None and chosen.status == Trial.PAUSED:
                chosen.set_status(Trial.PENDING)
            waiting = [trial for trial in [chosen, *self.trials] if trial and trial.status == Trial.PENDING]
            if waiting and sum(trial.status == Trial.RUNNING for trial in self.trials) < self.slots:
                waiting[0].set_status(Trial.RUNNING)
                self._schedule_trial_train(waiting[0])

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
        result = self._result(trial, records)
        flat, searcher = flatten_dict(result), self.search_alg.searcher
        decision = TrialScheduler.STOP if result["done"] else self.scheduler.on_trial_result(self, trial, flat)
        if decision != TrialScheduler.STOP and searcher is not None:
            searcher.on_trial_result(trial.trial_id, flat)
        trial.run_metadata.last_result = result
        if decision == TrialScheduler.STOP:
            self.stop_trial(trial)
        elif decision == TrialScheduler.PAUSE:
            self.pause_trial(trial)
        elif decision == TrialScheduler.CONTINUE:
            self._schedule_trial_train(trial)
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
