"""Hedge as a scheduler of Ray Tune: a trial is an expert, and a reported round is a round of Hedge."""

import hashlib
import json
import logging
import numbers
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import ray
from pyarrow.fs import LocalFileSystem
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.trainable import FunctionTrainable, Trainable
from ray.tune.utils import flatten_dict

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.ray_private import continue_trial, forget_decisions
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.sealed_json import read_objects
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds, renumber
from hedgerow.searchspaces.hedge.deployment import Deployment
from hedgerow.searchspaces.hedge.elimination import Elimination
from hedgerow.searchspaces.hedge.standing import JOURNAL, HedgeStanding, incomplete
from hedgerow.searchspaces.hedge.weights import AdaHedge, Hedge
from hedgerow.searchspaces.spaces.packing import Members

LOG = logging.getLogger(__name__)

ROUND = "round"

FRESH = 1.0
"""Seconds for which the resources of the cluster are not looked up again."""

PATIENCE = 30.0
"""Seconds without a report after which a pending trial counts as one without room: others may use the cluster, too."""


@dataclass(frozen=True)
class TrialRules:
    """How trials take turns, which ones stop, and what a failed one costs.

    Args:
        ahead: Rounds that a trial may be ahead of another when not all trials fit on the cluster. A trial that is too
            far ahead is paused (with a checkpoint), and the trial with the fewest rounds takes its place; if no other
            trial needs the room, it keeps its process and waits. With 0, rounds are lock-step: no trial begins a round
            before all trials have reported the one before, whether they fit or not; each result must then have one
            round, unless the trials themselves wait for each other in every round, and report several together.
        strict: Whether trials also wait when all of them fit.
        missing: Loss of a trial that failed permanently: the worst loss in each round ("penalise"), or none ("skip").
        prune: Trials whose weight falls below this are stopped; the regret against them has no bound. 0: none.
        elimination: Stops trials, with a bound for weights other than FixedShare and Exp3. None: no trial is stopped.
    """

    ahead: int = 20
    strict: bool = False
    missing: Literal["penalise", "skip"] = "penalise"
    prune: float = 0.0
    elimination: Elimination | None = None


@dataclass(frozen=True)
class HedgeHooks:
    """Connections of a scheduler to the program around it.

    Args:
        on_round: Called with the record of every complete round; after a restore, with the earlier ones again.
        warn: Called with warnings; the default logs them.
        averaged: Metrics whose weighted mean is in the records.
        seed: Of the draws of the policy "sample" in the records.
        members: Experts of a trial by its identifier and configuration, for a trainable that trains several. Its
            results have the rounds as dictionaries under "records", with "expert" and "round". None: each trial is an
            expert, and a result is a round.
        journal: File to which every report is appended. None: hedge.jsonl in the folder of Tune's experiment.
        deployment: See `HedgeRounds`.
    """

    on_round: Callable[[RoundRecord], None] | None = None
    warn: Callable[[str], None] = LOG.warning
    averaged: tuple[str, ...] = ()
    seed: int = 0
    members: Callable[[str, dict[str, Any]], Members] | None = None
    journal: Path | None = None
    deployment: Deployment | None = None


class HedgeScheduler(TrialScheduler):
    """Weights trials by their reported metric, round by round (Hedge; Freund & Schapire 1997).

    No trial is stopped by default: the weights say, after each round, how much to trust each trial, and the regret
    against the best trial in hindsight has a bound. Trials take turns when not all of them fit on the cluster.

    Works with any searcher and any trainable that reports its metric. Its journal, `hedge.jsonl` in the folder of the
    experiment, keeps every report, so that `Tuner.restore` continues with the same weights. A trial that failed
    permanently stays failed after a restore. If `max_concurrent_trials` is below the number of trials, they run to
    their end one after another, and rounds are complete once the last trial has reported them.

    Args:
        time_attr: A training result attr that counts rounds: whole numbers from 1, the same for all trials.
        metric: The training result objective value attribute. None: that of `tune.TuneConfig`.
        mode: One of {min, max}. Whether to minimise or maximise the metric. None: that of `tune.TuneConfig`.
        range: (low, high) of the metric; other values are clipped. None: with mode "max", the metric is an
            accuracy in [0, 1]; with "min", it may have any value.
        experts: Expected number of trials; another one is a warning. None: as many as Tune creates.
        hedge: Returns the rule of the weights for a number of experts, such as `AdaHedge` or
            `partial(Hedge, gamma=0.5)`. None: `AdaHedge` with mode "min" and no range, otherwise `Hedge`.
        rules: Turns, stops and failures of the trials.
        hooks: Functions that are called, and connections to other programs.
    """

    def __init__(
        self,
        time_attr: str = TRAINING_ITERATION,
        metric: str | None = None,
        mode: Literal["max", "min"] | None = None,
        range: tuple[float, float] | None = None,
        experts: int | None = None,
        hedge: Callable[[int], Hedge] | None = None,
        rules: TrialRules = TrialRules(),
        hooks: HedgeHooks = HedgeHooks(),
    ):
        super().__init__()
        self._metric, self.mode, self.range, self.experts, self.hedge = metric, mode, range, experts, hedge
        self.time_attr, self.rules, self.hooks = time_attr, rules, hooks
        self.strict = rules.strict or rules.ahead == 0
        self.rounds: HedgeRounds
        self._opened = self._limited = self._repeats = False
        self._holding: dict[str, Trial] = {}
        self._pausing: set[str] = set()
        self.cluster_resources: Callable[[], dict[str, float]] = ray.cluster_resources
        """Resources of the cluster; a replay has its own."""
        self._capacity: tuple[float, dict[str, float]] | None = None
        self._experts: dict[str, list[int]] = {}
        """Experts of each trial that was added."""
        self._heard, self._recorded = 0.0, 0
        if metric and mode:
            self._weigh(experts or 1)

    @classmethod
    def read(cls, folder: str | Path) -> HedgeStanding:
        """Weights of a finished, running or interrupted search, such as `results.experiment_path`.

        Raises UserError when no round is complete.
        """
        return HedgeStanding.read(folder)

    def weight(self, trial: Trial) -> float:
        """Weight of a trial after the latest complete round."""
        return float(self.rounds.weights[self._experts[trial.trial_id]].sum())

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take metric and mode from `tune.TuneConfig`; returns False if both there and here are set.

        Raises UserError when one is missing, or the number of trials has no limit.
        """
        if (self._metric and metric) or (self.mode and mode):
            return False
        self._metric, self.mode = self._metric or metric, self.mode or mode  # type: ignore[assignment]
        if self._metric is None or self.mode is None:
            missing = "metric" if self._metric is None else "mode"
            raise UserError(f"HedgeScheduler has no {missing}; set it here or in tune.TuneConfig")
        if spec.get("num_samples", 1) >= sys.maxsize:
            raise UserError(
                "HedgeScheduler weighs a fixed number of trials; set num_samples of tune.TuneConfig to it instead of -1"
            )
        self._weigh(self.experts or 1)
        return True

    def _weigh(self, experts: int) -> None:
        """Begin with equal weights. Raises UserError when mode, range and rule do not fit."""
        assert self._metric is not None, "set_search_properties refuses a search without a metric"
        if self.mode not in ("min", "max"):
            raise UserError(f"HedgeScheduler: mode must be 'min' or 'max', not {self.mode!r}")
        scale_free = self.mode == "min" and self.range is None
        hedge = (self.hedge or (AdaHedge if scale_free else Hedge))(experts)
        if scale_free and not isinstance(hedge, AdaHedge):
            raise UserError(
                "HedgeScheduler: this rule needs the range of the metric; set range=(low, high) or no hedge"
            )
        rules, hooks = self.rules, self.hooks
        self.rounds = HedgeRounds(
            *(hedge, self._metric, self.mode, self.range, rules.missing, hooks.averaged),
            on_round=hooks.on_round,
            seed=hooks.seed,
            deployment=hooks.deployment,
            elimination=rules.elimination and replace(rules.elimination, stopped={}, price=0.0),
        )
        self._unfinished = {expert for expert, _ in enumerate(self.rounds.latest)}
        self._counted = (0, 0), 0

    # ---- callbacks of Tune --------------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if trial.trial_id not in self._experts and trial.status == Trial.PENDING:
            # Paused from the start: Tune starts pending trials itself, but paused ones only when the scheduler says so.
            trial.set_status(Trial.PAUSED)
            if trial.storage is not None:
                # Progress reporters of Tune read the folder of every trial.
                trial.init_local_path()
        if self._opened:
            self._enter(tune_controller, trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> str:
        self._open(tune_controller)
        self._heard = time.monotonic()
        self._report(trial, result)
        experts, rules = self._experts[trial.trial_id], self.rules
        if all(self.rounds.retired.get(expert) for expert in experts):
            return TrialScheduler.STOP
        if rules.prune or self.rounds.elimination:
            self.rounds.settle()
        if all(map(self.rounds.is_stopped, experts)):
            self._end(trial, penalised=False)
            return TrialScheduler.STOP
        below = rules.prune and max(self.rounds.hedge.probs()[experts]) < rules.prune
        if below and self._unfinished.difference(experts):
            self._end(trial, penalised=False)
            return TrialScheduler.STOP
        if self._must_wait(trial):
            # `choose_trial_to_run` decides whether it gives up its process, when it is known if another trial needs it.
            self._holding[trial.trial_id] = trial
            return TrialScheduler.NOOP
        return TrialScheduler.CONTINUE

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> None:
        self._open(tune_controller)
        if result:
            self._report(trial, result)
        self._end(trial, penalised=False)

    def on_trial_remove(self, tune_controller: Any, trial: Trial) -> None:
        self._open(tune_controller)
        self._end(trial, penalised=False)

    def on_trial_error(self, tune_controller: Any, trial: Trial) -> None:
        self._open(tune_controller)
        # Tune restarts it from its checkpoint as long as `max_failures` allows.
        self._holding.pop(trial.trial_id, None)
        self._pausing.discard(trial.trial_id)
        if not trial.should_recover():
            self._end(trial, penalised=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Returns the trial with the fewest rounds while there is room, and one trial more.

        Tune keeps the process of a trial that ends or pauses only if another trial is already waiting for it. A trial
        that does not fit yet starts no process of its own. A trial that is being paused counts as gone. A trial that is
        too far ahead keeps its idle process until it may continue or another trial needs the room, because a new
        process costs seconds.
        """
        self._open(tune_controller)
        trials = tune_controller.get_trials()
        self._retire_ended(trials)
        self._pausing -= {trial.trial_id for trial in trials if trial.status == Trial.PAUSED}
        self._end_stopped(tune_controller, trials)
        pending = [trial for trial in trials if trial.status == Trial.PENDING]
        stuck = time.monotonic() > self._heard + PATIENCE
        wanted = bool(pending) and (stuck or self._busy(trials) > self._room(pending[0]))
        self._release(tune_controller, wanted)
        # Only now, so that trials train meanwhile.
        self.rounds.settle()
        self._record()
        self._retire_forgotten(tune_controller)
        self._fit_number(tune_controller)
        waiting = [trial for trial in trials if trial.status == Trial.PAUSED]
        if not waiting:
            return None
        latest, experts = self.rounds.latest.tolist(), self._experts
        first = min(waiting, key=lambda t: (min(map(latest.__getitem__, experts[t.trial_id])), experts[t.trial_id]))
        return first if self._busy(trials) <= self._room(first) and not self._must_wait(first) else None

    def _busy(self, trials: list[Trial]) -> int:
        """Number of trials that have a process or wait for one."""
        return sum(t.status in (Trial.RUNNING, Trial.PENDING) and t.trial_id not in self._pausing for t in trials)

    def _retire_ended(self, trials: list[Trial]) -> None:
        """Retire the trials that ended without a callback; otherwise, all others would wait for them.

        Tune calls none when it fails to reset a reused process, nor for a trial that had ended before a restore; after
        a crash, the journal may have no line for it.
        """
        for trial in trials:
            if trial.is_finished() and not self._unfinished.isdisjoint(self._experts[trial.trial_id]):
                self._holding.pop(trial.trial_id, None)
                self._pausing.discard(trial.trial_id)
                self._end(trial, penalised=trial.status == Trial.ERROR)

    def _retire_forgotten(self, tune_controller: Any) -> None:
        """Retire experts whose trials began after the last snapshot of a restored search, unless Tune may still create
        them again.
        """
        present = self._experts.keys()
        forgotten = [one for one, name in self.rounds.trials.items() if name not in present and one in self._unfinished]
        if forgotten and tune_controller.search_alg.is_finished():
            self._finish(forgotten, penalised=False)

    def _end_stopped(self, tune_controller: Any, trials: list[Trial]) -> None:
        """End the trials that elimination has stopped while they waited for others."""
        for trial in trials if self.rounds.elimination else ():
            waits = trial.status == Trial.PAUSED or (self.is_holding(trial) and not trial.is_saving)
            if waits and all(map(self.rounds.is_stopped, self._experts[trial.trial_id])):
                self._holding.pop(trial.trial_id, None)
                tune_controller.stop_trial(trial)

    def _release(self, tune_controller: Any, wanted: bool) -> None:
        """Resume the held trials that are no longer too far ahead; if others need the room, pause the rest."""
        for trial in list(self._holding.values()):
            if trial.is_saving:
                continue
            if trial.status != Trial.RUNNING:
                del self._holding[trial.trial_id]
            elif not self._must_wait(trial):
                del self._holding[trial.trial_id]
                continue_trial(tune_controller, trial)
            elif wanted:
                del self._holding[trial.trial_id]
                self._check_pause(trial)
                self._pausing.add(trial.trial_id)
                tune_controller.pause_trial(trial)

    def _check_pause(self, trial: Trial) -> None:
        """Warn once if the trial will repeat its steps. Raises UserError if it would fail, as all others would."""
        trainable = trial.get_trainable_cls()
        if trainable is None:
            return
        if not issubclass(trainable, FunctionTrainable):
            if trainable.save_checkpoint is Trainable.save_checkpoint:
                raise UserError(
                    f"HedgeScheduler has to pause a trial, but {trainable.__name__} has no save_checkpoint; add "
                    "save_checkpoint and load_checkpoint, or give all trials room at once"
                )
        elif trial.checkpoint is None and not self._repeats:
            self._repeats = True
            self.hooks.warn(
                "Trials are paused without a checkpoint, so they repeat their steps from the first one when they "
                "continue; pass a checkpoint to tune.report, give all trials room at once, or raise `ahead`"
            )

    @property
    def warning(self) -> str | None:
        """Warning about the weights at the end of the search, or None."""
        return self.rounds.warning if self.rounds.complete else incomplete(len(self._experts))

    def end_early(self) -> None:
        """Process the last reports of a search that a budget has ended, without the callbacks of its trials."""
        self.rounds.settle()
        if self._unfinished and self.warning:
            self.hooks.warn(self.warning)

    def is_holding(self, trial: Trial) -> bool:
        """Whether a trial is too far ahead of others, so that its process waits."""
        return trial.trial_id in self._holding

    def debug_string(self) -> str:
        rounds = self.rounds
        if not rounds.complete:
            return "Hedge: no round is complete"
        leader = int(rounds.weights.argmax())
        name = next((trial for trial, experts in self._experts.items() if leader in experts), "none")
        return f"Hedge: round {rounds.complete}, leader {name}, regret {rounds.hedge.regret:.3g}"

    # ---- reports and the journal --------------------------------------------------------------------------------

    def _report(self, trial: Trial, result: RoundRecord) -> None:
        self.rounds.accept(self._rounds_of(trial, result))

    def _rounds_of(self, trial: Trial, result: RoundRecord) -> Iterator[tuple[int, int, RoundRecord]]:
        """Yields the expert, the number and the metrics of each round of a result. Raises UserError."""
        if self.hooks.members:
            for record in result.get("records", [result]):
                yield record.get("expert", self._experts[trial.trial_id][0]), int(record.get(ROUND, 0)), record
        elif self._metric in result:
            round = result.get(self.time_attr)
            if not isinstance(round, numbers.Real) or not float(round).is_integer() or round < 1:
                raise UserError(
                    f"HedgeScheduler: trial {trial.trial_id} reported {self.time_attr} = {round!r}; set time_attr to a "
                    "result that counts rounds in whole numbers from 1"
                )
            yield self._experts[trial.trial_id][0], int(float(round)), result

    def _record(self) -> None:
        """Write the weights to the journal if a round is complete, for `read`."""
        if self.rounds.complete > self._recorded and not self.hooks.members:
            self._recorded = self.rounds.complete
            self.rounds.write_standing()

    def _open(self, tune_controller: Any) -> None:
        """Continue from the journal once the trials are known: only they distinguish a restored search from a new one.

        Not done in `on_trial_add`: when that fails in a restored search, Tune starts it again from the beginning.
        """
        trials = tune_controller.get_trials()
        if self._opened or not trials:
            return
        self._opened, self._heard = True, time.monotonic()
        forget_decisions(tune_controller)
        journal = self.hooks.journal or _journal_of(trials)
        if not self.hooks.members:
            self._weigh(_number_in(journal) or self._expected(tune_controller))
        self.rounds.open(journal)
        self._recorded = self.rounds.complete
        self._unfinished.difference_update(self.rounds.retired)
        for trial in trials:
            self._enter(tune_controller, trial)
            self._check_complete(trial)
        self._retire_forgotten(tune_controller)
        self._fit_number(tune_controller)
        self._limited = sum(map(len, self._experts.values())) < len(self.rounds.latest)
        if self._limited and self.strict:
            raise UserError(
                f"HedgeScheduler: in lock-step, all {len(self.rounds.latest)} trials begin together, but only "
                f"{len(trials)} were created; remove max_concurrent_trials, or set `ahead` above 0 without `strict`"
            )

    def _expected(self, tune_controller: Any) -> int:
        """Number of trials that Tune creates in total."""
        number = max(tune_controller.search_alg.total_samples, len(tune_controller.get_trials()))
        if self.experts not in (None, number):
            self.hooks.warn(f"HedgeScheduler(experts={self.experts}): there are {number} trials, which are weighed")
        return number

    def _fit_number(self, tune_controller: Any) -> None:
        """Weigh fewer experts if the searcher has finished before it proposed all of them."""
        known = len(self.rounds.trials)
        if known < len(self.rounds.latest) and not self.hooks.members and tune_controller.search_alg.is_finished():
            self._resize(known)

    def _resize(self, experts: int) -> None:
        """Weigh another number of experts: repeat the journal with it."""
        self.hooks.warn(f"HedgeScheduler: there are {experts} trials instead of {len(self.rounds.latest)}")
        journal = self.rounds.journal
        assert journal is not None, "the scheduler has opened its journal"
        renumber(journal, experts)
        self._weigh(experts)
        self.rounds.open(journal)
        self._unfinished.difference_update(self.rounds.retired)
        self._recorded = 0

    def _enter(self, tune_controller: Any, trial: Trial) -> None:
        """Give a trial its experts, and record their configurations."""
        if self.hooks.members:
            members = self.hooks.members(trial.trial_id, trial.config)
            self._experts[trial.trial_id] = [expert for expert, _ in members]
            for expert, overrides in members:
                self.rounds.enter(expert, _fingerprint(overrides or trial.config))
            return
        expert, configuration = self._number(tune_controller, trial), _fingerprint(trial.config)
        if expert == len(self.rounds.latest):
            self._resize(expert + 1)
        self._experts[trial.trial_id] = [expert]
        self.rounds.enter(expert, configuration, trial.trial_id)

    def _number(self, tune_controller: Any, trial: Trial) -> int:
        """Number of a trial: the one in the journal, that of a trial that it replaces, or the next one.

        Raises UserError when the journal is of another search.
        """
        known = {name: expert for expert, name in self.rounds.trials.items()}
        if trial.trial_id in known:
            return known[trial.trial_id]
        if trial.has_reported_at_least_once and self.rounds.latest.any():
            raise UserError(
                f"{self.rounds.journal} is not a journal of this search: trial {trial.trial_id} is not in it; restore "
                "the right file, or start a new search in another folder"
            )
        present = {one.trial_id for one in tune_controller.get_trials()}
        replaced = [
            expert
            for expert in self.rounds.find(_fingerprint(trial.config))
            if self.rounds.trials.get(expert) not in present
        ]
        return min(replaced, default=len(known))

    def _check_complete(self, trial: Trial) -> None:
        """Check that the journal contains the rounds that a restored trial does not report again. Raises UserError."""
        checkpoint = trial.latest_checkpoint_result
        last = trial.run_metadata.last_result if trial.is_finished() else checkpoint.metrics if checkpoint else None
        for expert, round, record in self._rounds_of(trial, flatten_dict(last or {})):
            if self._metric in record and expert not in self.rounds.retired and round > self.rounds.latest[expert]:
                raise UserError(
                    f"{self.rounds.journal}: the reports of expert {expert} end before round {round}, which its trial "
                    "has passed, so its weight is unknown; restore a copy of the file, or start a new search"
                )

    # ---- room ---------------------------------------------------------------------------------------------------

    def _end(self, trial: Trial, penalised: bool) -> None:
        running = bool(self._unfinished)
        self._finish(self._experts[trial.trial_id], penalised)
        self._record()
        if running and not self._unfinished and self.warning:
            self.hooks.warn(self.warning)

    def _finish(self, experts: list[int], penalised: bool) -> None:
        for expert in experts:
            self._unfinished.discard(expert)
            self.rounds.retire(expert, penalised)

    def _must_wait(self, trial: Trial) -> bool:
        """Whether the trial is too far ahead while not all trials fit on the cluster, or in any case if `strict`."""
        if self._limited:
            return False
        ahead = min(self.rounds.ahead(expert) for expert in self._experts[trial.trial_id])
        return ahead >= max(1, self.rules.ahead) and (self.strict or self._trials_left() > self._room(trial))

    def _trials_left(self) -> int:
        """Number of unfinished trials; an expert that no trial has named yet counts as one."""
        # Counted again only when a trial was added or an expert has finished.
        state = len(self._experts), len(self._unfinished)
        if state != self._counted[0]:
            running = [experts for experts in self._experts.values() if not self._unfinished.isdisjoint(experts)]
            self._counted = state, len(running) + len(self._unfinished.difference(*running))
        return self._counted[1]

    def _room(self, trial: Trial) -> int:
        """Number of such trials that fit on the cluster at once."""
        assert trial.placement_group_factory is not None
        request = trial.placement_group_factory.required_resources
        capacity = self._cluster()
        room = min(
            (int(capacity.get(kind, 0) / n + 1e-6) for kind, n in request.items() if n), default=self._trials_left()
        )
        return max(1, room)

    def _cluster(self) -> dict[str, float]:
        """Resources of the cluster. Ray takes about 0.6 ms to list them, so they are up to `FRESH` seconds old."""
        now = time.monotonic()
        if self._capacity is None or not 0 <= now - self._capacity[0] < FRESH:
            self._capacity = now, self.cluster_resources()
        return self._capacity[1]


def _journal_of(trials: list[Trial]) -> Path:
    """Path of the journal in the experiment's folder; deletes an old journal unless Tune restored the experiment.

    If the folder is not local, the journal is a file that Tune uploads with its own snapshots.
    """
    storage = trials[0].storage
    assert storage is not None, "Tune gives every trial its storage"
    local = isinstance(storage.storage_filesystem, LocalFileSystem)
    folder = Path(storage.experiment_fs_path if local else storage.experiment_driver_staging_path)
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / JOURNAL
    if not any(trial.has_reported_at_least_once or trial.checkpoint for trial in trials):
        # Trials that start from their first round report every round: this file is from an older search.
        journal.unlink(missing_ok=True)
    elif not local:
        remote = f"{storage.experiment_fs_path}/{JOURNAL}"
        if storage.storage_filesystem.get_file_info(remote).is_file:
            with storage.storage_filesystem.open_input_stream(remote) as file:
                journal.write_bytes(file.readall())
    return journal


def _number_in(journal: Path) -> int | None:
    """Number of experts of a journal; None if the file does not exist."""
    return read_objects(journal)[0].get("experts") if journal.exists() else None


def _fingerprint(config: RoundRecord) -> str:
    """Hash of a configuration; arrays count by their values, and other objects by their type."""
    text = json.dumps(
        config, skipkeys=True, default=lambda value: getattr(value, "tolist", lambda: type(value).__qualname__)()
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
