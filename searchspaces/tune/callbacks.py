"""Reports a running search to the terminal, its run folder and MLflow."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import ray
from ray import tune
from ray.tune.experiment import Trial

from hedgerow.platform.actors.cluster_nodes import ClusterNodes
from hedgerow.platform.actors.ray_health import LOOK, RayHealth
from hedgerow.platform.common.errors import RayLost, UserError
from hedgerow.platform.common.signals import Termination
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import dump_experiment
from hedgerow.platform.storage.checkpoint import checkpoints, latest_checkpoint, read_progress, round_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.formatting import short_label
from hedgerow.platform.tracking.run_folder import RunFolder, now
from hedgerow.platform.tracking.summary import divergence_warnings, is_done, kept, summarise
from hedgerow.platform.tracking.tracker import MlflowLogger, RunLog
from hedgerow.searchspaces.results.trials import BLOCKS, expert_folder
from hedgerow.searchspaces.results.trials import Trial as RecordedTrial
from hedgerow.searchspaces.spaces.packing import COPIES, members
from hedgerow.searchspaces.spaces.search_file import SearchSpec
from hedgerow.searchspaces.tune.trial_loggers import TrialLoggers

SAVING = 30.0
"""Seconds that running trials have to save their state after a termination signal."""


class ShowSearch(Protocol):
    """Observer of a running search, such as the live table. labels: one per trial, updated by `SearchCallback`."""

    labels: list[str]

    def trial(self, index: int, record: RoundRecord) -> None: ...
    def state(self, index: int, text: str) -> None: ...
    def hedge(self, record: RoundRecord) -> None: ...


class SearchCallback(tune.Callback):
    """Forwards the reports of trials and Hedge, and maintains the records of the trials' run folders.

    folder: run folder of the search. lock: lock of that folder. notify: called with messages about silent trials.
    classes: see `summary.divergence_warnings`.
    """

    def __init__(
        self,
        folder: Path,
        spec: SearchSpec,
        lock: RunLock,
        show: ShowSearch | None,
        tracker: MlflowLogger | None,
        notify: Callable[[str], None],
        classes: int,
    ):
        self.folder, self.spec, self.lock, self.notify, self.classes = folder, spec, lock, notify, classes
        self.show, self.tracker = show, tracker
        self.health: RayHealth | None = None
        self.lost: RayLost | None = None
        """Error that interrupted the search when Ray was lost; None otherwise."""
        self.log = RunLog(folder / "metrics.jsonl")
        self.log.replace([])
        self.blocks = RunLog(folder / BLOCKS)
        self.warnings: dict[str, None] = {}
        self.loggers = TrialLoggers(folder, spec, lambda sentence: self.warnings.update({sentence: None}))
        self._reported: dict[int, int] = {}
        self._copies: dict[int, int] = {}
        self._started: dict[str, Trial] = {}
        self.trials: list[Trial] = []
        """All trials that Tune has created."""
        self.termination: Termination | None = None
        self._timeout = spec.experiment.resources.timeout
        self._alive: dict[str, float] = {}
        """Time of the last report or start of each trial, while resources.timeout is set."""
        self._looked = 0.0
        self._nodes: ClusterNodes | None = None
        self.is_idle: Callable[[Trial], bool] = lambda trial: False
        """Whether a running trial has nothing to do, and therefore gives no sign of life."""
        self.on_start: Callable[[Trial], None] = lambda trial: None
        """Called with each trial that starts or continues to train."""
        self.on_end: Callable[[int], None] = lambda index: None
        """Called with the number of each expert whose trial has ended."""

    def __getstate__(self) -> dict[str, Any]:
        """Nothing: Tune saves callbacks to disk, for a restore that is not used here."""
        return {}

    def hedge(self, record: RoundRecord) -> None:
        """Record a complete round of Hedge."""
        self.log.append(record)
        if self.show:
            self.show.hedge(record)
        if self.tracker:
            self.tracker.log({"expert": None, **record})

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Stop on a signal or when Ray is lost, and look for silent trials, between two steps of Tune."""
        self.trials = trials
        if self.termination:
            self.termination.check()
        if self.health is None:
            return
        try:
            answers = self.health.check()
        except RayLost as error:
            self.lost = error
            # On any other exception, Tune cleans up in Ray, which would never finish.
            raise KeyboardInterrupt from error
        if time.monotonic() < self._looked + LOOK:
            return
        self._looked = time.monotonic()
        if answers:
            self._nodes = self._nodes or ClusterNodes(self.notify)
            self._nodes.look()
            self._end_silent_trials()

    def _end_silent_trials(self) -> None:
        """Kill the processes of trials that do not answer; Tune starts them again from their checkpoints."""
        now, timeout = time.monotonic(), self._timeout
        for name, trial in self._started.items() if timeout else ():
            actor = trial.temporary_state.ray_actor
            if actor is None or trial.status != Trial.RUNNING or self.is_idle(trial):
                self._alive[name] = now
            elif timeout and now > self._alive[name] + timeout:
                self.notify(f"{_name(trial)} did not answer for {timeout:g} s (resources.timeout) and is started again")
                self._alive[name] = now
                ray.kill(actor)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._enter(trial)
        self.on_start(trial)
        self._started[trial.trial_id] = trial
        self._alive[trial.trial_id] = time.monotonic()
        self._state(trial, "running")

    def _enter(self, trial: Trial) -> None:
        """Write the records of the trial's run folders."""
        for index, overrides in members(trial.trial_id, trial.config):
            folder = expert_folder(self.folder, index)
            # Called again after every pause. In population based training, the configuration may differ then: the
            # trial's process writes it to the folder together with the model that it takes over.
            if folder.exists and (record := folder.record())["overrides"] == overrides:
                if record["status"] == "interrupted":
                    folder.update(status="running")
                self._accept_changes(folder, overrides)
                continue
            first = {}
            if not folder.exists:
                folder.path.mkdir(parents=True, exist_ok=True)
                folder.experiment.write_text(dump_experiment(self.spec.trial(overrides)))
                first = {"name": folder.name, "status": "running", "created": now(), "overrides": overrides}
            folder.update(data=self._data(self.spec.trial(overrides)), **first)
            if self.show and not self.spec.configurations:
                self.show.labels[index] = short_label(overrides)

    def _accept_changes(self, folder: RunFolder, overrides: dict[str, Any]) -> None:
        """Bring the file of a trial up to date with a search that continues with other settings, and note them."""
        changes = RunFolder(self.folder).record().get("changes")
        if not changes or folder.experiment.read_text() == (file := dump_experiment(self.spec.trial(overrides))):
            return
        record, latest = folder.record(), latest_checkpoint(folder.checkpoints)
        noted = record.get("changes", [])
        since = max([record["created"], *(note["time"] for note in noted)])
        place = {"round": round_of(latest[0])} if latest else {}
        # A finished trial has the fingerprint of its file; this one continues.
        status = {"status": "running"} if record["status"] == "finished" else {}
        folder.update(changes=noted + [note | place for note in changes if note["time"] > since], **status)
        folder.experiment.write_text(file)

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: RoundRecord, **info: Any
    ) -> None:
        self.lock.claim.check()
        self._alive[trial.trial_id] = time.monotonic()
        self.warnings |= dict.fromkeys(result["warnings"])
        for sentence in result["notices"]:
            self.notify(f"{_name(trial)}: {sentence}")
        self._take(self._records(result), result[COPIES])

    def _take(self, records: list[RoundRecord], copies: int) -> None:
        """Pass new records of trials on. copies: how many models of other trials theirs has taken over."""
        for record in records:
            index = record["expert"]
            # A trial that was restored from its checkpoint reports earlier rounds again.
            if record["round"] <= self._reported.get(index, 0):
                continue
            self._reported[index] = record["round"]
            if self.show:
                self.show.trial(index, record)
            if self.tracker:
                self.tracker.log({**record, COPIES: copies})
            self.loggers.round(index, record)

    def _records(self, result: RoundRecord) -> list[RoundRecord]:
        """Records of a result; in the first result after a copy, those of the model that was copied, too."""
        records, copies = result["records"], result[COPIES]
        index = records[0]["expert"] if records else None
        if index is None or self._copies.get(index, 0) == copies:
            return records
        self._copies[index], self._reported[index] = copies, 0
        # Those of the model so far; the first record of the copied one starts others.
        self.loggers.end(index, "stopped")
        rounds = RunLog(expert_folder(self.folder, index).metrics).read()
        return [{"expert": index, **record} for record in rounds if record["round"] <= result["round"]]

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self._state(trial, "waiting")

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        for index, _ in members(trial.trial_id, trial.config):
            self._complete(index)

    def take_over(self, index: int, status: str) -> None:
        """Report a trial that had ended with a status before the search was interrupted."""
        folder = expert_folder(self.folder, index)
        if self.tracker:
            for record in RunLog(folder.metrics).read():
                self.tracker.log({"expert": index, **record})
        if folder.record()["status"] == status:
            self._state_of(index, status)
        elif status == "failed":
            self._end(index, status)
        else:
            self._complete(index)

    def _complete(self, index: int) -> None:
        """Write the end of a trial to its record."""
        folder = expert_folder(self.folder, index)
        records = RunLog(folder.metrics).read()
        folder.update(diverged=divergence_warnings(records, self.classes))
        if not is_done(self.spec.experiment, records):
            self._end(index, "stopped")
        else:
            progress = read_progress(checkpoints(folder.checkpoints)[-1])
            experiment = self.spec.experiment
            evaluation, modes = experiment.evaluation, experiment.task.modes
            summary = summarise(records, evaluation.targets, evaluation.target_metric, modes)
            folder.update(plans=progress["plans"], summary=summary, **kept(progress))
            self._end(index, "finished")

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        # A trial may fail before it starts. It has a folder as well, since weights and losses are by number.
        self._enter(trial)
        for index, _ in members(trial.trial_id, trial.config):
            self._end(index, "failed")

    @property
    def training(self) -> set[str]:
        """Identifiers of the trials that train, without those that wait for others."""
        return {one.trial_id for one in self.trials if one.status == Trial.RUNNING and not self.is_idle(one)}

    def end_running(self, trials: list[RecordedTrial]) -> None:
        """End trials that a budget has stopped, with the rounds that they did not report."""
        for trial in trials:
            index = int(trial.name)
            self._take([{"expert": index, **record} for record in trial.records], self._copies.get(index, 0))
            self._complete(index)

    def save_trials(self) -> None:
        """Make all running trials save their current round, and wait for them for at most `SAVING` seconds."""
        running = [trial for trial in self._started.values() if trial.status == Trial.RUNNING]
        actors = [trial.temporary_state.ray_actor for trial in running]
        calls: list[Any] = [actor.save_run.remote() for actor in actors if actor is not None]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=SAVING)

    def interrupt(self) -> None:
        """Record that the search ends before the trials that it has started, and end their loggers."""
        for file in sorted(self.folder.glob("experts/*/run.json")):
            folder = RunFolder(file.parent)
            # The error that ends the search is reported, not one that follows from it.
            with suppress(OSError, UserError):
                self.loggers.end(int(folder.name), "interrupted")
                if not self.lock.claim.is_lost and folder.record()["status"] == "running":
                    folder.update(status="interrupted")

    def _end(self, index: int, status: str) -> None:
        self.on_end(index)
        folder = expert_folder(self.folder, index)
        if folder.exists:
            folder.update(status=status, finished=now())
        self.loggers.end(index, status)
        if self.show:
            self.show.state(index, status)

    def _data(self, trial: Experiment) -> dict[str, Any] | None:
        """Entry `data` of a trial's run.json: the search's entry without parts that the trial draws or builds."""
        known, whole = RunFolder(self.folder).record().get("data"), self.spec.experiment
        if known is None:
            return known
        same_seed = trial.seed == whole.seed
        own: dict[str, Any] = {}
        if not same_seed or trial.task.partition != whole.task.partition:
            own = {"partition": None, "drawn": True}
        if not same_seed or trial.task.model != whole.task.model:
            own["frozen"] = None
        return known | own

    def _state(self, trial: Trial, text: str) -> None:
        for index, _ in members(trial.trial_id, trial.config):
            self._state_of(index, text)

    def _state_of(self, index: int, text: str) -> None:
        if self.show:
            self.show.state(index, text)


def _name(trial: Trial) -> str:
    """Name of a trial for the user."""
    return f"trial {', '.join(str(index) for index, _ in members(trial.trial_id, trial.config))}"
