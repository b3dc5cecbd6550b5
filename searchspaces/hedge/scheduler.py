"""Hedge as a scheduler of Ray Tune: a trial is an expert, and a reported round is a round of Hedge."""

import hashlib
import json
import logging
import time
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
from hedgerow.platform.common.ray_private import continue_trial, forget_decisions
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.searchspaces.hedge.async_rounds import HedgeRounds
from hedgerow.searchspaces.hedge.deployment import Deployment
from hedgerow.searchspaces.hedge.elimination import Elimination
from hedgerow.searchspaces.hedge.weights import AdaHedge, Hedge
from hedgerow.searchspaces.spaces.packing import members

LOG = logging.getLogger(__name__)

ROUND = "round"

JOURNAL = "hedge.jsonl"
"""Name of the journal in the folder of Tune's experiment."""


FRESH = 1.0
"""Seconds for which the resources of the cluster are not looked up again."""


class HedgeScheduler(TrialScheduler):
    """Weights trials by their reported metric, round by round (thesis, Algorithm 10), and lets them take turns.

    Works with any trainable that reports its metric:

        tune.Tuner(trainable, tune_config=tune.TuneConfig(scheduler=HedgeScheduler(8, metric="loss", mode="min")), ...)

    experts: number of experts; by default, each is a trial. metric, mode, range, missing, averaged, on_round: see
    HedgeRounds. hedge: weights of the experts; None: `Hedge(experts, gamma)` with gamma 0.1 or, for a metric to be
    minimised without `range` and `gamma`, `AdaHedge(experts)`. ahead: rounds that a trial may be ahead of another when
    not all trials fit on the cluster. A trial that is too far ahead is paused (with a checkpoint), and the trial with
    the fewest rounds takes its place; if no other trial needs the room, it keeps its process and waits. If all trials
    fit, none waits, unless `strict`. With `ahead=0`, rounds are lock-step: no trial begins a round before all trials
    have reported the one before, whether they fit or not; each result must then have one round, unless the trials
    themselves wait for each other in every round, and report several rounds together. seed, deployment: see
    HedgeRounds. prune: trials whose weight falls below this are stopped; the regret against a stopped trial is
    no longer bounded. elimination: stops trials, with a bound for weights other than FixedShare and Exp3. time_attr:
    key that counts rounds. A result may also contain several rounds, as a list of dictionaries under "records". A trial
    may train several experts (`packing.members`); each record then names its "expert".
    journal: file to which every report is appended, and from which an interrupted search continues; the default is
    hedge.jsonl in the folder of Tune's experiment, so that `Tuner.restore` continues with the same weights.
    (`HedgeRounds` with the same settings and this journal also has the weights.) An expert whose trial failed
    permanently stays failed after a restore.
    warn: called when the search ends, with `HedgeRounds.warning` if there is one (such as for a range that clipped more
    than 1 % of the reports); the default logs it.
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
        strict: bool = False,
        prune: float = 0.0,
        time_attr: str = TRAINING_ITERATION,
        journal: Path | None = None,
        on_round: Callable[[RoundRecord], None] | None = None,
        warn: Callable[[str], None] = LOG.warning,
        seed: int = 0,
        deployment: Deployment | None = None,
        elimination: Elimination | None = None,
    ):
        super().__init__()
        self._metric = metric
        self.strict = strict or ahead == 0
        self.ahead, self.prune, self.time_attr, self.warn = ahead, prune, time_attr, warn
        if hedge is None:
            scale_free = mode == "min" and range is None and gamma is None
            hedge = AdaHedge(experts) if scale_free else Hedge(experts, 0.1 if gamma is None else gamma)
        self.rounds = HedgeRounds(
            *(hedge, metric, mode, range, missing, averaged),
            on_round=on_round,
            seed=seed,
            deployment=deployment,
            elimination=elimination,
        )
        self.error: UserError | None = None
        """Error that ended the search when trials reported invalid metrics; Tune passes on only its traceback."""
        self._journal, self._opened = journal, False
        self._unfinished = {expert for expert, _ in enumerate(self.rounds.latest)}
        self._holding: dict[str, Trial] = {}
        self._pausing: set[str] = set()
        self.cluster_resources: Callable[[], dict[str, float]] = ray.cluster_resources
        """Resources of the cluster; a replay has its own."""
        self._capacity: tuple[float, dict[str, float]] | None = None
        self._counted = (0, 0), 0
        self._experts: dict[str, list[int]] = {}
        """Experts of each trial that was added."""

    # ---- callbacks of Tune --------------------------------------------------------------------------------------

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        if max(experts_of(trial)) >= len(self.rounds.latest):
            raise ValueError(
                f"HedgeScheduler(experts={len(self.rounds.latest)}) was given more trials; set it to their number"
            )
        if trial.trial_id not in self._experts and trial.status == Trial.PENDING:
            # Paused from the start: Tune starts pending trials itself, but paused ones only when the scheduler says so.
            trial.set_status(Trial.PAUSED)
        self._experts[trial.trial_id] = experts_of(trial)
        if self._opened:
            self._enter(trial)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: RoundRecord) -> str:
        self._open(tune_controller)
        self._report(trial, result)
        experts = experts_of(trial)
        if all(self.rounds.retired.get(expert) for expert in experts):
            return TrialScheduler.STOP
        if self.prune or self.rounds.elimination:
            self.rounds.settle()
        if all(map(self.rounds.is_stopped, experts)):
            self._end(trial, penalised=False)
            return TrialScheduler.STOP
        below = self.prune and max(self.rounds.hedge.probs()[experts]) < self.prune
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
        self._release(tune_controller, wanted=any(trial.status == Trial.PENDING for trial in trials))
        # Only now, so that trials train meanwhile.
        self.rounds.settle()
        waiting = [trial for trial in trials if trial.status == Trial.PAUSED]
        if not waiting:
            return None
        latest, experts = self.rounds.latest.tolist(), self._experts
        first = min(waiting, key=lambda t: (min(map(latest.__getitem__, experts[t.trial_id])), experts[t.trial_id]))
        busy = sum(t.status in (Trial.RUNNING, Trial.PENDING) and t.trial_id not in self._pausing for t in trials)
        return first if busy <= self._room(first) and not self._must_wait(first) else None

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
                self._pausing.add(trial.trial_id)
                tune_controller.pause_trial(trial)

    def is_holding(self, trial: Trial) -> bool:
        """Whether a trial is too far ahead of others, so that its process waits."""
        return trial.trial_id in self._holding

    def debug_string(self) -> str:
        hedge = self.rounds.hedge
        return f"Hedge: round {hedge.rounds}, leader {int(self.rounds.weights.argmax())}, regret {hedge.regret:.3g}"

    # ---- reports and the journal --------------------------------------------------------------------------------

    def _report(self, trial: Trial, result: RoundRecord) -> None:
        try:
            self.rounds.accept(self._rounds_of(trial, result))
        except UserError as error:
            self.error = error
            raise

    def _rounds_of(self, trial: Trial, result: RoundRecord) -> Iterator[tuple[int, int, RoundRecord]]:
        """Yields the expert, the number and the metrics of each round of a result."""
        first = experts_of(trial)[0]
        for record in result.get("records", [result]):
            round = int(record.get(ROUND, record.get(self.time_attr, 0)))
            yield record.get("expert", first), round, record

    def _open(self, tune_controller: Any) -> None:
        """Continue from the journal once the trials are known: only they distinguish a restored search from a new one.

        Not done in `on_trial_add`: when that fails in a restored search, Tune starts it again from the beginning.
        """
        trials = tune_controller.get_trials()
        if self._opened or not trials:
            return
        self._opened = True
        forget_decisions(tune_controller)
        self.rounds.open(self._journal or _journal_of(trials))
        self._unfinished.difference_update(self.rounds.retired)
        for trial in trials:
            self._enter(trial)
            self._check_complete(trial)

    def _enter(self, trial: Trial) -> None:
        for expert, overrides in members(trial.trial_id, trial.config):
            self.rounds.enter(expert, _fingerprint(overrides or trial.config))

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
        for expert in experts_of(trial):
            self._unfinished.discard(expert)
            self.rounds.retire(expert, penalised)
        if running and not self._unfinished and self.rounds.warning:
            self.warn(self.rounds.warning)

    def _must_wait(self, trial: Trial) -> bool:
        """Whether the trial is too far ahead while not all trials fit on the cluster, or in any case if `strict`."""
        ahead = min(self.rounds.ahead(expert) for expert in experts_of(trial))
        return ahead >= max(1, self.ahead) and (self.strict or self._trials_left() > self._room(trial))

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


def _fingerprint(config: RoundRecord) -> str:
    """Hash of a configuration; arrays count by their values, and other objects by their type."""
    text = json.dumps(config, default=lambda value: getattr(value, "tolist", lambda: type(value).__qualname__)())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def experts_of(trial: Trial) -> list[int]:
    """Numbers of a trial's experts."""
    return [number for number, _ in members(trial.trial_id, trial.config)]
