"""Session of a run or a search: its folder with lock and copy, loggers, signals, status, warnings, and its end."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from hedgerow.platform.common.errors import INTERRUPTIONS, Interrupted, UserError, on_full_disk, say
from hedgerow.platform.common.memory import is_exhausted
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.common.servers import require_named
from hedgerow.platform.common.signals import TERMINATIONS, Termination, handling, signal_of
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.logger_section import LoggerChoice, build_loggers
from hedgerow.platform.data.partition_summary import partition_record
from hedgerow.platform.loggers.logger import Loggers
from hedgerow.platform.runs.own_data import data_record, loop_note, same_data
from hedgerow.platform.runs.same_settings import changed_settings_warnings, kept_settings_warning, same_settings
from hedgerow.platform.runtime.factory import Data
from hedgerow.platform.storage.checkpoint import checkpoint_warnings
from hedgerow.platform.storage.mirror import Mirror
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.run_folder import RunFolder, SeedSeries, new_run, now, started_run, unfinished_run
from hedgerow.platform.tracking.tracker import MlflowLogger
from hedgerow.platform.ui.command_output import print_warning
from hedgerow.platform.ui.plotting import optional_figures

MLFLOW = "mlflow"
"""Name of MLflow among the loggers of a run."""

Finished = TypeVar("Finished", bound=Any)


@dataclass(frozen=True)
class Work(Generic[Finished]):
    """A run or a search, as its session sees it.

    settings: those that determine its numbers. carry_out: called while the session is open; returns the result, which
    gets the warnings of the session. mlflow: returns the logger for MLflow. also: loggers in addition; those of a
    search belong to its trials. text: experiment.yaml, if it contains more than the experiment. check: called with the
    data of a resumed search before any work; raises UserError.
    """

    experiment: Experiment
    settings: dict[str, Any]
    carry_out: "Callable[[Session], Finished]"
    mlflow: "Callable[[Session], MlflowLogger]"
    also: Sequence[LoggerChoice] = ()
    text: str | None = None
    check: Callable[[Data], None] = lambda data: None


class Session:
    """A run or a search in progress. Raises UserError when no checkpoint can be used."""

    def __init__(self, work: Work[Any], folder: RunFolder, lock: RunLock, data: Data):
        self.folder, self.lock, self.data = folder, lock, data
        self.termination = Termination()
        self.warnings = changed_settings_warnings(folder.record())
        path = folder.path.absolute()
        for checkpoints in (path / "checkpoints", *sorted(path.glob("experts/*/checkpoints"))):
            self.warnings += checkpoint_warnings(checkpoints)
        self.loggers = Loggers(build_loggers(list(work.also)), self.warnings.append)
        self.mlflow = work.mlflow(self) if work.experiment.tracking.enabled else None
        if self.mlflow:
            # The last one to end: it may wait for a server.
            self.loggers.loggers.append((MLFLOW, self.mlflow))
        folder.keep_partition(partition_record(data[1], data[0]))
        folder.update(status="running")

    def notify(self, sentence: str) -> None:
        """Report a problem that does not stop the run: on the terminal, in the run's record, and at the end."""
        self.warnings.append(sentence)
        self.folder.update(notices=[*self.folder.record().get("notices", []), sentence])
        say(sentence)

    def finish(self, summary: dict[str, Any], draw: Callable[[], None], **results: Any) -> None:
        """Record the results; then draw the figures and end the loggers, which cannot lose the results."""
        self.folder.update(status="finished", finished=now(), summary=summary, **results)
        # No more rounds are saved, so a signal interrupts at once.
        self.termination.saves = False
        self.termination.check()
        with optional_figures(self.warnings.append):
            draw()
        self.loggers.end("finished", summary)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the status of a run that ends early, unless another process has taken the run over. Ctrl-C, SIGTERM
        and SIGHUP interrupt the run.
        """
        quiet_libraries()
        with handling(self.termination, signal.SIGINT, *TERMINATIONS):
            try:
                yield
            except KeyboardInterrupt as error:
                self.termination.is_handled = True
                raise self._interrupted(signal_of(error)) from None
            except BaseException as error:
                self._end("interrupted" if isinstance(error, INTERRUPTIONS) else "failed")
                if is_exhausted(error):
                    raise UserError(
                        f"{self.folder}: the run does not fit into memory; lower algorithm.batch_size or the sizes of "
                        "task.model, and run it again"
                    ) from error
                raise
            finally:
                self.termination.is_handled = True

    def _interrupted(self, number: int) -> Interrupted:
        """Record the interruption by a signal; returns the exception to raise."""
        finished = ""
        if self.folder.record()["status"] == "finished":
            advice = (
                f"; `hedgerow push {self.folder}` records it in MLflow" if MLFLOW in dict(self.loggers.loggers) else ""
            )
            finished = f"{self.folder} is finished{advice}"
        try:
            self._end("interrupted")
        except KeyboardInterrupt as again:
            number = signal_of(again)
        return Interrupted(self.folder, number, finished)

    def _end(self, status: str) -> None:
        """Record that a run ended before it was finished. Of a run whose figures were interrupted, end the loggers but
        for MLflow: `hedgerow push` does that.
        """
        record = self.folder.record()
        if record["status"] == "finished":
            others = [one for one in self.loggers.loggers if one[0] != MLFLOW]
            self.loggers.end("finished", record["summary"], others)
            return
        # On a full disk, the original error is reported, not the failure to record the status.
        with suppress(OSError):
            if not self.lock.claim.is_lost:
                self.folder.update(status=status)
        self.loggers.end(status, {})


def start(
    work: Work[Finished],
    data: Data,
    data_root: Path | None,
    own: bool,
    note: Mapping[str, Any],
    series: SeedSeries | None = None,
    name: str | None = None,
) -> Finished:
    """Begin a run or a search, and carry it out.

    data: checked data set and partition. data_root: folder of the data sets. own: whether these are the caller's
    arrays instead of the data in the file. note: further entries of run.json. series: that the run belongs to. name: of
    its folder; None: a new one. Raises UserError before any work if something is invalid.
    """
    experiment = work.experiment
    build_loggers(experiment.tracking.also)
    with new_run(experiment, data_root, work.text, series, name) as (folder, lock), _saving(folder):
        record = {"settings": work.settings, "data": data_record(experiment, data, own)}
        folder.update(**record, **loop_note(experiment, data[0]), **note)
        return _carry_out(work, folder, lock, data)


def resume_work(
    name: str, read: Callable[[RunFolder], Work[Finished]], data: Data | None = None, changed: bool = False
) -> Finished:
    """Continue a run or a search from its last checkpoints, or from the start if there are none.

    name: its folder, or the URI of its copy. read: reads its file. data: data set and partition, if it was given its
    own. changed: accept and record settings that differ from those that it started with. Raises UserError if data or
    settings differ otherwise.
    """
    with unfinished_run(name) as (folder, lock), _saving(folder):
        work = read(folder)
        if work.experiment.tracking.enabled:
            require_named(work.experiment.tracking.uri, str(folder))
        same_settings(folder, work.settings, changed)
        data = same_data(folder, work.experiment, data)
        work.check(data)
        return _carry_out(work, folder, lock, data)


def _saving(folder: RunFolder) -> AbstractContextManager[None]:
    return on_full_disk(f"`hedgerow resume {folder}` continues from the last checkpoint", folder)


def _carry_out(work: Work[Finished], folder: RunFolder, lock: RunLock, data: Data) -> Finished:
    with Mirror(folder.path, work.experiment.checkpoints.storage) as mirror:
        session = Session(work, folder, lock, data)
        with session.recorded():
            finished = work.carry_out(session)
    return replace(finished, warning="; ".join([*session.warnings, *mirror.warnings]) or None)


def run_or_resume(
    experiment: Experiment,
    name: str | None,
    display: Callable[[], AbstractContextManager[Any]],
    read: Callable[[RunFolder], Finished],
    resume: Callable[[str, Any], Finished],
    run: Callable[[Any], Finished],
    values: dict[str, Any],
) -> Finished:
    """Result of the run or the search of this name: read if it is finished, resumed if it was started, otherwise run.

    name: of its folder; None: a new one. display: opens what shows the progress, for `resume` and `run`. values: the
    resolved file; one that was started keeps its own, and a warning names the differences.
    """
    folder = started_run(experiment, name) if name else None
    if folder and (sentence := kept_settings_warning(folder, values)):
        print_warning(sentence)
    if folder and folder.record()["status"] == "finished":
        return read(folder)
    with display() as show:
        return resume(str(folder), show) if folder else run(show)
