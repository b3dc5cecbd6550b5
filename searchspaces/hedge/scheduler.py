"""Hedge as a scheduler of Ray Tune: a trial is an expert, a reported round is one of Hedge's rounds."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import ray
from pyarrow.fs import LocalFileSystem
from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils import flatten_dict

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.ray_private import continue_trial
from hedgerow.platform.tracking.records import RoundRecord
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.weights import AdaHedge, Hedge
from hedgerow.searchspaces.spaces.packing import members

LOG = logging.getLogger(__name__)

ROUND = "round"

JOURNAL = "hedge.jsonl"
"""Name of the journal in the folder of Tune's experiment."""


class HedgeScheduler(TrialScheduler):
    """Weighs the trials by what they report, round by round (thesis, Algorithm 10), and lets them take turns.

    Works with any trainable that reports its metric:

        tune.Tuner(trainable, tune_config=tune.TuneConfig(scheduler=HedgeScheduler(8, metric="loss", mode="min")), ...)

    experts: how many there will be; as a rule each is a trial. metric, mode, range, missing, averaged, on_round: see
    HedgeRounds. hedge: the rate; None: `Hedge(experts, gamma)` with gamma 0.1, or, for a metric to be minimised
    without `range` and `gamma`, `AdaHedge(experts)`. ahead: with more trials than the cluster has room for, the rounds
    that one may be ahead of another; then it is paused (with a checkpoint), and the one that is least far takes its
    place, or it waits where it is if no other needs the room. With room for all, no trial ever waits. prune: trials
    whose weight falls below it are stopped; the regret to a stopped trial is bounded no more. time_attr: the key that
    counts rounds; a result may also carry several rounds at once, as a list of dictionaries under "records". A trial
    may train several experts (`packs.members`): then each of its records names its "expert".
    journal: file to which every report is appended, and from which an interrupted search continues; the default is
    hedge.jsonl in the folder of Tune's experiment, so that `Tuner.restore` continues with the weights as they were.
    (`HedgeRounds` with the same settings and this journal has the weights, too.) An expert whose trial failed for good
    stays failed after a restore.
    warn: called with a sentence when the search ends and the range clipped more than 1 % of the reports; the default
    logs it.
    """

    def __init__(
        self,
        experts: int,
        metric: str = "loss",
        mode: Literal["max", "min"] = "min",
        gamma: float | None = None,
        hedge: Hedge | None = None,
        range: tuple[float, float] | None = None,
        missing: Literal["penalise", "skip"] = "penalise",
        averaged: tuple[str, ...] = (),
        ahead: int = 20,
        prune: float = 0.0,
        time_attr: str = TRAINING_ITERATION,
        journal: Path | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        warn: Callable[[str], None] = LOG.warning,
    ):
        super().__init__()
        self._metric = metric
        self.ahead, self.prune, self.time_attr, self.warn = ahead, prune, time_attr, warn
        if hedge is None:
            scale_free = mode == "min" and range is None and gamma is None
            hedge = AdaHedge(experts) if scale_free else Hedge(experts, 0.1 if gamma is None else gamma)
        self.rounds = HedgeRounds(hedge, metric, mode, range, missing, averaged, on_round=on_round)
        self.error: UserError | None = None
        """What ended the search, if the trials reported nonsense: Tune itself passes on only its traceback."""
        self._journal, self._opened = journal, False
        self._unfinished = {expert for expert, _ in enumerate(self.rounds.latest)}
        self._holding: dict[str, Trial] = {}
        self._pausing: set[str] = set()
        self._known: dict[str, set[int]] = {}

    # ---- what Tune tells ----------------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if max(experts_of(trial)) >= len(self.rounds.latest):
            raise ValueError(f"HedgeScheduler(experts={len(self.rounds.latest)}) was given more trials than that")
        if trial.trial_id not in self._known and trial.status == Trial.PENDING:
            # Paused from the beginning: Tune starts pending trials by itself, but paused ones only when we say so.
            trial.set_status(Trial.PAUSED)
        self._known[trial.trial_id] = set(experts_of(trial))
        if self._opened:
            self._enter(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> str:
        self._open(tune_controller)
        self._report(trial, result)
        experts = experts_of(trial)
        if all(self.rounds.retired.get(expert) for expert in experts):
            return TrialScheduler.STOP
        below = self.prune and max(self.rounds.hedge.probs()[experts]) < self.prune
        if below and self._unfinished.difference(experts):
            self._end(trial, penalised=False)
            return TrialScheduler.STOP
        if self._must_wait(trial):
            # Whether it gives up its process is decided in `choose_trial_to_run`, when it is known who wants it.
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
        # Tune starts it again from its checkpoint as long as its `max_failures` allow.
        self._holding.pop(trial.trial_id, None)
        self._pausing.discard(trial.trial_id)
        if not trial.should_recover():
            self._end(trial, penalised=True)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """The trial that is least far, where there is room, and one more.

        Tune keeps the process of a trial that ends or pauses only if another is waiting for it by then. What does not
        fit yet starts no process of its own. A trial that is being paused counts as gone. One that is too far ahead
        keeps its process, idle, until it may go on or another needs the room: a new process costs seconds.
        """
        self._open(tune_controller)
        trials = tune_controller.get_trials()
        self._pausing -= {trial.trial_id for trial in trials if trial.status == Trial.PAUSED}
        self._release(tune_controller, wanted=any(trial.status == Trial.PENDING for trial in trials))
        waiting = [trial for trial in trials if trial.status == Trial.PAUSED]
        if not waiting:
            return None
        first = min(waiting, key=lambda trial: (int(min(self.rounds.latest[experts_of(trial)])), experts_of(trial)))
        busy = sum(t.status in (Trial.RUNNING, Trial.PENDING) and t.trial_id not in self._pausing for t in trials)
        return first if busy <= self._room(first) and not self._must_wait(first) else None

    def _release(self, tune_controller: Any, wanted: bool) -> None:
        """Let those go on that were too far ahead and are no more; if their room is wanted, pause the others."""
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
                self._pausing.add(trial.trial_id)
                tune_controller.pause_trial(trial)

    def is_holding(self, trial: Trial) -> bool:
        """Whether a trial is too far ahead of others, and its process waits until it may go on."""
        return trial.trial_id in self._holding

    def debug_string(self) -> str:
        hedge = self.rounds.hedge
        return f"Hedge: round {hedge.rounds}, leader {hedge.leader}, regret {hedge.regret:.3g}"

    # ---- reports and the journal --------------------------------------------------------------------------------

    def _report(self, trial: Trial, result: RoundRecord) -> None:
        try:
            for expert, round, record in self._rounds_of(trial, result):
                self.rounds.report(expert, round, record)
        except UserError as error:
            self.error = error
            raise

    def _rounds_of(self, trial: Trial, result: RoundRecord) -> Iterator[tuple[int, int, RoundRecord]]:
        """Expert, number and metrics of each round of a result."""
        for record in result.get("records", [result]):
            round = int(record.get(ROUND, record.get(self.time_attr, 0)))
            yield record.get("expert", experts_of(trial)[0]), round, record

    def _open(self, tune_controller: Any) -> None:
        """Continue from the journal, as soon as the trials are known: only they tell a restored search from a new one.

        Not in `on_trial_add`: Tune starts a search again from its beginning when that fails in a restored one.
        """
        trials = tune_controller.get_trials()
        if self._opened or not trials:
            return
        self._opened = True
        self.rounds.open(self._journal or _journal_of(trials))
        self._unfinished.difference_update(self.rounds.retired)
        for trial in trials:
            self._enter(trial)
            self._check_complete(trial)

    def _enter(self, trial: Trial) -> None:
        for expert, overrides in members(trial.trial_id, trial.config):
            self.rounds.enter(expert, _fingerprint(overrides or trial.config))

    def _check_complete(self, trial: Trial) -> None:
        """Check that the journal has the rounds that a restored trial does not report again. Raises UserError."""
        saved = trial.latest_checkpoint_result
        last = trial.run_metadata.last_result if trial.is_finished() else saved.metrics if saved else None
        for expert, round, record in self._rounds_of(trial, flatten_dict(last or {})):
            if self._metric in record and expert not in self.rounds.retired and round > self.rounds.latest[expert]:
                raise UserError(
                    f"{self.rounds.journal}: the reports of expert {expert} end before round {round}, which its trial "
                    "has passed, so its weight is not known; restore a copy of the file, or start the search again"
                )

    # ---- room ---------------------------------------------------------------------------------------------------

    def _end(self, trial: Trial, penalised: bool) -> None:
        running = bool(self._unfinished)
        for expert in experts_of(trial):
            self._unfinished.discard(expert)
            self.rounds.retire(expert, penalised)
        if running and not self._unfinished and self.rounds.warning:
            self.warn(self.rounds.warning)

    def _must_wait(self, trial: Trial) -> bool:
        """Whether the trial is too far ahead, where the trials have to share what room there is."""
        ahead = min(self.rounds.ahead(expert) for expert in experts_of(trial))
        return ahead >= self.ahead and self._trials_left() > self._room(trial)

    def _trials_left(self) -> int:
        """How many trials have not ended; an expert that no trial has named yet counts as one."""
        running = [experts for experts in self._known.values() if experts & self._unfinished]
        return len(running) + len(self._unfinished.difference(*running))

    def _room(self, trial: Trial) -> int:
        """How many such trials the cluster holds at once."""
        assert trial.placement_group_factory is not None
        wanted = trial.placement_group_factory.required_resources
        has = ray.cluster_resources()
        room = min((int(has.get(kind, 0) / n + 1e-6) for kind, n in wanted.items() if n), default=self._trials_left())
        return max(1, room)


def _journal_of(trials: list[Trial]) -> Path:
    """The journal in the experiment's folder; empty unless Tune restored the experiment.

    Where the folder is no local one, it is a file that Tune uploads with its own snapshots.
    """
    storage = trials[0].storage
    assert storage is not None, "Tune gives every trial its storage"
    local = isinstance(storage.storage_filesystem, LocalFileSystem)
    folder = Path(storage.experiment_fs_path if local else storage.experiment_driver_staging_path)
    folder.mkdir(parents=True, exist_ok=True)
    journal = folder / JOURNAL
    if not any(trial.has_reported_at_least_once or trial.checkpoint for trial in trials):
        # Trials that begin from their first round report every round: an older search left this file.
        journal.unlink(missing_ok=True)
    elif not local:
        remote = f"{storage.experiment_fs_path}/{JOURNAL}"
        if storage.storage_filesystem.get_file_info(remote).is_file:
            with storage.storage_filesystem.open_input_stream(remote) as file:
                journal.write_bytes(file.readall())
    return journal


def _fingerprint(config: RoundRecord) -> str:
    """What identifies a configuration: objects in it count by their type."""
    text = json.dumps(config, default=lambda value: getattr(value, "tolist", lambda: type(value).__qualname__)())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def experts_of(trial: Trial) -> list[int]:
    """The numbers of a trial's experts."""
    return [number for number, _ in members(trial.trial_id, trial.config)]
