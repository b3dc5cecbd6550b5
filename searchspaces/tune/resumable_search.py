"""A scheduler and a searcher of Ray Tune that continue an interrupted search, by the reports in its journal."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from ray.tune.experiment import Trial
from ray.tune.result import AUTO_RESULT_KEYS, TIMESTAMP
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher, SearchGenerator

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.scheduler import ROUND
from hedgerow.searchspaces.spaces.packing import COPIES, LINEAGE, NUMBER, members
from hedgerow.searchspaces.tune.report_journal import REPORTS, ReportJournal
from hedgerow.searchspaces.tune.simulated_controller import SimulatedController

T = TypeVar("T")

TUNES = {*AUTO_RESULT_KEYS, TIMESTAMP, "done"}
"""Entries of a result that Tune adds."""


class ResumableScheduler(TrialScheduler):
    """Passes the calls of Tune's controller on to a scheduler, and writes them to a journal.

    Reports of rounds that the scheduler knows are not passed on: a trial whose process or whose search was interrupted
    may repeat some. Nor is a failure after which the trial goes on. Global random numbers, which some schedulers use,
    are seeded for each call.

    scheduler: None: every trial runs to its last round. seed: of the random numbers.
    """

    def __init__(self, scheduler: TrialScheduler | None, journal: ReportJournal, seed: int):
        super().__init__()
        # Any: it is given the simulated controller, too.
        self.scheduler: Any = scheduler or FIFOScheduler()
        self.journal, self.seed = journal, seed
        self.position: int | None = None
        """Number of the report that is repeated; None: the search runs."""
        self.trials: dict[str, Trial] = {}
        """Trials that were added, by identifier."""
        self.repeats: set[str] = set()
        """Trials whose last report was not passed on."""
        self.interrupted: list[Trial] = []
        """Trials that trained when the search was interrupted: they start before others."""
        self._stopping: set[int] = set()
        self._ends: list[int] | None = None
        self._controllers: dict[str, Any] = {}

    @property
    def metric(self) -> str | None:
        return self.scheduler.metric

    @property
    def supports_buffered_results(self) -> bool:
        return self.scheduler.supports_buffered_results

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        return self.scheduler.set_search_properties(metric, mode, **spec)

    def debug_string(self) -> str:
        return self.scheduler.debug_string()

    @contextmanager
    def seeded(self) -> Iterator[None]:
        """Global random numbers are those of the next report in this context, as often as it is repeated."""
        event = self.journal.reports if self.position is None else self.position
        states = random.getstate(), np.random.get_state()
        random.seed(f"{self.seed} {event}")
        np.random.seed(np.random.SeedSequence((self.seed, event)).generate_state(4))
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])

    # ---- callbacks of Tune --------------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if self.trials.get(trial.trial_id) is trial:
            return
        self.trials[trial.trial_id] = trial
        with self.seeded():
            self.scheduler.on_trial_add(tune_controller, trial)
        if self.position is None:
            proposal = trial.config["overrides"] if NUMBER in trial.config else None
            self.journal.append("add", trial=number_of(trial), overrides=proposal)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> str:
        number, round = number_of(trial), int(result[ROUND])
        if self.position is None:
            self.repeats.discard(trial.trial_id)
            last = self.journal.rounds.get(number, 0)
            if number in self.journal.ends or round <= last:
                self.repeats.add(trial.trial_id)
                ended = number in self.journal.ends and round >= last
                return TrialScheduler.STOP if ended else TrialScheduler.CONTINUE
        before = trial.latest_checkpoint_result
        decision, ends = self._ask(lambda: self.scheduler.on_trial_result(tune_controller, trial, result))
        if self.position is None:
            copy = self._copy_of(trial, before)
            values = _numbers(result)
            self.journal.append("report", trial=number, result=values, decision=decision, ends=ends, copy_of=copy)
            if copy:
                self.take_over(trial, number)
            if decision == TrialScheduler.STOP:
                self._stopping.add(number)
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> None:
        number = number_of(trial)
        if self._notice_end(number) or self.position is not None:
            self.scheduler.on_trial_complete(tune_controller, trial, result)
        elif number in self.journal.ends:
            self.repeats.add(trial.trial_id)
        else:
            _, ends = self._ask(lambda: self.scheduler.on_trial_complete(tune_controller, trial, result))
            stop = TrialScheduler.STOP
            self.journal.append("report", trial=number, result=_numbers(result), done=True, decision=stop, ends=ends)
            self.repeats.discard(trial.trial_id)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._notice_end(number_of(trial))
        self.scheduler.on_trial_remove(tune_controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        if self.position is None:
            # Tune either adds the trial again, or ends it in the searcher.
            self._controllers[trial.trial_id] = tune_controller
        else:
            self.scheduler.on_trial_error(tune_controller, trial)

    def fail(self, trial_id: str) -> None:
        """Pass on that a trial has failed permanently."""
        trial = self.trials[trial_id]
        controller = self._controllers.get(trial_id)
        _, ends = self._ask(lambda: self.scheduler.on_trial_error(controller, trial))
        self.journal.append("fail", trial=number_of(trial), ends=ends)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        waiting = next((trial for trial in self.interrupted if trial.status == Trial.PENDING), None)
        if waiting is not None:
            return waiting
        chosen, ends = self._ask(lambda: self.scheduler.choose_trial_to_run(tune_controller))
        if ends and self.position is None:
            self.journal.append("choose", ends=ends)
        return chosen

    def on_trial_start(self, trial: Trial) -> None:
        """Record that a trial starts to train."""
        self.interrupted = [one for one in self.interrupted if one is not trial]
        self.journal.append("start", trial=number_of(trial))

    def take_over(self, trial: Trial, number: int) -> None:
        """Give a trial the number of its copies, and the origin of its model."""
        lineage = {COPIES: self.journal.copies[number], LINEAGE: self.journal.origins[number]}
        trial.set_config({**trial.config, **lineage})

    def _ask(self, call: Callable[[], T]) -> tuple[T, list[int]]:
        """Result of a call of the scheduler, and the numbers of the trials that it ended."""
        self._ends = []
        try:
            with self.seeded():
                return call(), self._ends
        finally:
            self._ends = None

    def _notice_end(self, number: int) -> bool:
        """Whether the scheduler itself ends a trial: its decision is, or will be, in the journal."""
        if self._ends is not None:
            self._ends.append(number)
            return True
        if number in self._stopping:
            self._stopping.discard(number)
            return True
        return False

    def _copy_of(self, trial: Trial, before: Any) -> dict[str, Any] | None:
        """Entry of the journal on the trial whose model a scheduler gave to another one; None: it did not."""
        latest = trial.latest_checkpoint_result
        if latest is before or latest is None or latest.metrics.get("trial_id") in (None, trial.trial_id):
            return None
        donor = self.trials[latest.metrics["trial_id"]]
        return {
            "donor": number_of(donor),
            ROUND: int(latest.metrics[ROUND]),
            "donor_overrides": donor.config["overrides"],
            "overrides": trial.config["overrides"],
        }


class ResumableSearch(SearchAlgorithm):
    """Gives Tune the trials of a search: those that an interrupted search has left, with what the scheduler knows.

    searcher: proposes the configurations; None: they are in the parameter space. scheduler: repeats the journal's
    events before the first trial. limit: trials that have not ended at once; None: no limit, but a searcher proposes
    only while no trial waits. save: returns Tune's checkpoint of a trial in a round, for a copy of it. is_complete:
    whether nothing remains to do for a trial that has ended.
    """

    def __init__(
        self,
        searcher: Searcher | None,
        scheduler: ResumableScheduler,
        limit: int | None,
        save: Callable[[Trial, int], Any],
        is_complete: Callable[[int], bool],
    ):
        self.search: Any = BasicVariantGenerator() if searcher is None else SearchGenerator(searcher)
        self.searcher = searcher
        self.scheduler, self.limit, self.save, self.is_complete = scheduler, limit, save, is_complete
        self._known: list[Trial] = []
        self._going: dict[str, Trial] = {}

    @property
    def metric(self) -> str | None:
        return self.search.metric

    @property
    def total_samples(self) -> int:
        return self.search.total_samples

    def set_search_properties(self, metric: str | None, mode: str | None, config: RoundRecord, **spec: Any) -> bool:
        return self.search.set_search_properties(metric, mode, config, **spec)

    def add_configurations(self, experiments: Any) -> None:
        self.search.add_configurations(experiments)
        self._repeat()

    def next_trial(self) -> Trial | None:
        if self._known:
            trial = self._known.pop(0)
        else:
            waits = self.searcher is not None and any(one.status == Trial.PENDING for one in self._going.values())
            if waits if self.limit is None else len(self._going) >= self.limit:
                return None
            with self.scheduler.seeded():
                trial = self.search.next_trial()
            if trial is None:
                return None
        self._going[trial.trial_id] = trial
        return trial

    def is_finished(self) -> bool:
        return not self._known and self.search.is_finished()

    def set_finished(self) -> None:
        self._known = []
        self.search.set_finished()

    def on_trial_result(self, trial_id: str, result: RoundRecord) -> None:
        if trial_id not in self.scheduler.repeats:
            self.search.on_trial_result(trial_id, result)

    def on_trial_complete(self, trial_id: str, result: RoundRecord | None = None, error: bool = False) -> None:
        self._going.pop(trial_id, None)
        if error:
            self.scheduler.fail(trial_id)
        if error or trial_id not in self.scheduler.repeats:
            self.search.on_trial_complete(trial_id, result=result, error=error)

    # ---- the journal --------------------------------------------------------------------------------------------

    def _repeat(self) -> None:
        """Bring scheduler and searcher into the state before the interruption, and keep the trials that go on."""
        scheduler, trials = self.scheduler, dict[int, Trial]()
        controller = SimulatedController(
            scheduler, self.searcher, save=lambda trial, result: self.save(trial, int(result[ROUND]))
        )
        scheduler.position = 0
        for event in scheduler.journal.events:
            match event["event"]:
                case "add":
                    with scheduler.seeded():
                        trial = self.search.next_trial()
                    if "overrides" in event:
                        trial.set_config({**trial.config, "overrides": event["overrides"]})
                    trials[number_of(trial)] = trial
                    controller.add(trial)
                case "choose":
                    controller.choose()
                case "start":
                    before: list[str] = []
                    while before != (before := [one.status for one in controller.trials]):
                        controller.choose()
                    trials[event["trial"]].set_status(Trial.RUNNING)
                case "report":
                    trial = trials[event["trial"]]
                    known = {"trial_id": trial.trial_id, "done": event.get("done", False)}
                    controller.report(trial, event["result"] | known, event["decision"])
                    if copy := event.get("copy_of"):
                        trial.set_config({**trial.config, "overrides": copy["overrides"]})
                        scheduler.take_over(trial, event["trial"])
                case "fail":
                    controller.fail(trials[event["trial"]])
            scheduler.position += event["event"] in REPORTS
        scheduler.position = None
        for number, trial in trials.items():
            if number in scheduler.journal.ends and self.is_complete(number):
                continue
            if trial.status == Trial.RUNNING:
                scheduler.interrupted.append(trial)
            if trial.status != Trial.PAUSED:
                trial.set_status(Trial.PENDING)
            self._known.append(trial)


def number_of(trial: Trial) -> int:
    """Number of the first expert of a trial."""
    return members(trial.trial_id, trial.config)[0][0]


def _numbers(result: RoundRecord) -> dict[str, float]:
    """Entries of a flat result that are numbers, without those that Tune adds."""
    return {
        key: value if isinstance(value, int) else float(value)
        for key, value in result.items()
        if isinstance(value, Real) and not isinstance(value, bool) and key not in TUNES and "/" not in key
    }
