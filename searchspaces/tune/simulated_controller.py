"""Tune's controller without actors: it passes results that are known to a scheduler and a searcher."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.tune.utils.util import flatten_dict

from hedgerow.platform.storage.history import RoundRecord


class SimulatedController:
    """Makes the calls of `ray.tune.execution.tune_controller.TuneController`, in the same order.

    scheduler: None: every trial runs to its last round. searcher: None: all configurations are known. train: called
    with each trial that trains its next rounds. save: returns the checkpoint of a trial in its current round, for a
    scheduler that copies trials.
    """

    def __init__(
        self,
        scheduler: TrialScheduler | None,
        searcher: Searcher | None = None,
        train: Callable[[Trial], None] = lambda trial: None,
        save: Callable[[Trial, RoundRecord], Any] = lambda trial, result: None,
    ):
        # Any: schedulers are typed for Tune's own controller.
        self.scheduler: Any = scheduler or FIFOScheduler()
        self.search_alg = SimpleNamespace(searcher=searcher)
        self.trials: list[Trial] = []
        self._train, self._save = train, save

    # ---- methods that schedulers call ---------------------------------------------------------------------------

    def get_trials(self) -> list[Trial]:
        """All trials, in the order in which they were added."""
        return self.trials

    def get_live_trials(self) -> list[Trial]:
        """Trials that have not ended."""
        return [trial for trial in self.trials if not trial.is_finished()]

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
        self._train(trial)

    def _schedule_trial_save(self, trial: Trial, result: RoundRecord | None = None) -> Any:
        # Name of Tune's method, which population based training calls.
        return self._save(trial, result or trial.last_result)

    # ---- events -------------------------------------------------------------------------------------------------

    def add(self, trial: Trial) -> None:
        """Add a trial that waits for a slot."""
        trial.create_placement_group_factory()
        self.trials.append(trial)
        self.scheduler.on_trial_add(self, trial)

    def choose(self) -> Trial | None:
        """Returns the trial that the scheduler lets run next, if any; it then waits for a slot."""
        chosen: Trial | None = self.scheduler.choose_trial_to_run(self)
        if chosen is not None and chosen.status == Trial.PAUSED:
            chosen.set_status(Trial.PENDING)
        return chosen

    def report(self, trial: Trial, result: RoundRecord, decision: str | None = None) -> None:
        """Report a result of a trial, and do what the scheduler decides.

        decision: what the scheduler has decided before in the same state; None: the search is not a repetition.
        """
        flat, searcher = flatten_dict(result), self.search_alg.searcher
        own = TrialScheduler.STOP if result["done"] else self.scheduler.on_trial_result(self, trial, flat)
        decision = decision or own
        if decision != TrialScheduler.STOP and searcher is not None:
            searcher.on_trial_result(trial.trial_id, flat)
        trial.run_metadata.last_result = result
        if decision == TrialScheduler.STOP:
            self.stop_trial(trial)
        elif decision == TrialScheduler.PAUSE:
            self.pause_trial(trial)
        elif decision == TrialScheduler.CONTINUE:
            self._train(trial)

    def fail(self, trial: Trial) -> None:
        """End a trial whose process failed too often."""
        self.scheduler.on_trial_error(self, trial)
        if self.search_alg.searcher is not None:
            self.search_alg.searcher.on_trial_complete(trial.trial_id, error=True)
        trial.set_status(Trial.ERROR)
