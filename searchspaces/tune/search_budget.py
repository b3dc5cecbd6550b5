"""Budget of a search: what its trials have spent, and the end of the search once that is all."""

import math
import time
from typing import Any

import ray
from ray import tune
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.searchspaces.results.finished_search import read_trials
from hedgerow.searchspaces.results.trials import Trial
from hedgerow.searchspaces.spaces.search_section import Budget
from hedgerow.searchspaces.tune.callbacks import SearchCallback
from hedgerow.searchspaces.tune.purse import IS_SPENT, ClientRounds, Purse

NOTE_SECONDS = 5.0
"""Seconds between two notes in run.json of what was spent."""


class SearchBudget(tune.Stopper):
    """Ends a search whose budget is spent, as a stopper of Ray Tune.

    Each trial asks `purse` after each of its rounds, and begins no other one once the budget is spent. Ray Tune stops
    all trials after those that train have reported this. The scheduler and the searcher are not informed, as in an
    interruption. What was spent is in run.json.

    folder: of the search. listener: knows the trials that train, and makes them save their state.
    """

    def __init__(self, budget: Budget, folder: RunFolder, listener: SearchCallback):
        self.budget, self.folder, self.listener = budget, folder, listener
        self.begun, self._noted = time.monotonic(), 0.0
        self.is_over = False
        """Whether the budget is spent."""
        self._last: set[str] = set()
        self._reported: set[str] = set()
        note = folder.record().get("budget") or {}
        self._before = note["spent"] if budget.unit in note else 0
        counter = None
        if budget.client_rounds is not None:
            if note:
                # The note of a search that was killed may be older than the last rounds of its trials.
                self._before = max(self._before, sum(map(_client_rounds, read_trials(folder))))
            here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
            actor: Any = ray.remote(ClientRounds).options(num_cpus=0, scheduling_strategy=here)
            counter = actor.remote(self._before, budget.client_rounds)
        until = time.time() + budget.seconds - self._before if budget.seconds is not None else math.inf
        self.purse = Purse(until, counter)
        self.is_over = self._before >= budget.limit
        self.note()

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Ray Tune saves stoppers to disk, for a restore that is not used here."""
        return {}

    @property
    def spent(self) -> float:
        """Client rounds or seconds of all sessions so far."""
        if self.purse.counter is not None:
            return ray.get(self.purse.counter.total.remote())
        return self._before + time.monotonic() - self.begun

    def note(self, ended: bool = False) -> None:
        """Write what was spent to run.json. ended: whether the budget has ended the search."""
        self._noted = time.monotonic()
        self.folder.update(budget={self.budget.unit: self.budget.limit, "spent": self.spent, "ended": ended})

    def close(self, trials: int) -> bool:
        """End the trials that are not finished, if the budget is spent; returns whether it has ended the search.

        trials: number of trials of the whole search.
        """
        started = read_trials(self.folder)
        ended = self.is_over and (len(started) < trials or any(one.status == "running" for one in started))
        self.listener.end_running([one for one in started if one.status == "running" and ended])
        self.note(ended)
        return ended

    # ---- calls of Ray Tune ------------------------------------------------------------------------------------------

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        if result[IS_SPENT]:
            self._reported.add(trial_id)
        return False

    def stop_all(self) -> bool:
        if time.monotonic() >= self._noted + NOTE_SECONDS:
            self.note()
        training = self.listener.training
        if not self.is_over:
            self.is_over, self._last = bool(self._reported) or time.time() >= self.purse.until, training
        if not self.is_over or self._last & training - self._reported:
            return False
        self.listener.save_trials()
        for trial in self.listener.trials:
            # Tune's results name the folder of every trial, also of one that has not started.
            trial.init_local_path()
        return True


def _client_rounds(trial: Trial) -> int:
    """Client rounds of the rounds that a trial trained itself."""
    return sum(record["participants"] for record in trial.records) * trial.trained // max(1, len(trial.records))
