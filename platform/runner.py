"""Run and resume experiments: data in, rounds through, everything recorded."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, runtime_checkable

import torch

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.common.errors import Interrupted, RayLost, UserError, first_line
from hedgerow.platform.common.memory import is_exhausted
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.factory import Data, build_module, check, task_on
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data import Dataset
from hedgerow.platform.data.partition_summary import partition_record
from hedgerow.platform.drivers import open_driver
from hedgerow.platform.learner import Record
from hedgerow.platform.models.vmap_check import compare_constants
from hedgerow.platform.notices import Termination, handling, signal_of
from hedgerow.platform.runs.finished_run import FinishedRun, last_parameters
from hedgerow.platform.storage.checkpoint import checkpoints, read_latest, read_progress, tell_flaws
from hedgerow.platform.storage.mirror import Mirror
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.own_data import data_record, same_data, unhashed
from hedgerow.platform.tracking.run_description import NOTE, run_text, tags
from hedgerow.platform.tracking.run_folder import RunFolder, find_run, new_run, now, unfinished_run
from hedgerow.platform.tracking.summary import diverged, kept, left_out, summarise
from hedgerow.platform.tracking.tracker import RunLog, Tracker
from hedgerow.platform.ui.plots import draw_curves, draw_histograms

BEAT = 0.2
"""Seconds of rounds between two reports to the driver."""


PUSHES = 10
"""How many times `tracking.patience` a push waits: it may have all rounds to send."""

RECORDING = "recording in MLflow ... (Ctrl-C ends the wait)"


class Show(Protocol):
    """Sees the records of a run as they come, such as a progress bar."""

    def __call__(self, record: Record) -> None: ...


@runtime_checkable
class Noted(Protocol):
    """A display that also shows a sentence about what is happening now."""

    def note(self, text: str) -> None: ...


def run(
    experiment: Experiment,
    data_root: Path | None = None,
    show: Show | None = None,
    address: str | None = None,
    data: Data | None = None,
    own: bool = False,
) -> FinishedRun:
    """Run an experiment from its first round.

    data_root: where data sets lie. show: called with every round's record. address: a Ray cluster; None: the one this
    process is connected to, or a new one on this machine. data: what `build.check` returned, if it was called.
    own: whether these are the caller's arrays, and not what the file names.
    Raises UserError before any work when something is amiss.
    """
    data = data or check(experiment, data_root)
    with new_run(experiment, data_root) as (folder, lock):
        folder.update(data=data_record(experiment, data, own))
        return _execute(experiment, folder, lock, data, show, address)


def resume(name: str, show: Show | None = None, address: str | None = None, data: Data | None = None) -> FinishedRun:
    """Continue a run from its last checkpoint, or from the start when it has none.

    name: its folder, or the URI of its copy. data: data set and partition of a run that was given its own.
    Raises UserError when these are not what the run began with.
    """
    with unfinished_run(name) as (folder, lock):
        experiment = load_experiment(folder.experiment)
        return _execute(experiment, folder, lock, same_data(folder, experiment, data), show, address)


def _execute(
    experiment: Experiment,
    folder: RunFolder,
    lock: RunLock,
    data: Data,
    show: Show | None,
    address: str | None,
) -> FinishedRun:
    with Mirror(folder.path, experiment.checkpoints.storage) as mirror:
        finished = _carry_out(experiment, folder, lock, data, show, address)
    return mirror.told(finished)


def _carry_out(
    experiment: Experiment,
    folder: RunFolder,
    lock: RunLock,
    data: Data,
    show: Show | None,
    address: str | None,
) -> FinishedRun:
    dataset, partition = data
    start = time.perf_counter()
    folder.keep_partition(partition_record(partition, dataset))
    warnings = unhashed(folder) + tell_flaws(folder.checkpoints.absolute())
    found = read_latest(folder.checkpoints)
    history: Sequence[Record] = found[1]["history"] if found else []
    log = RunLog(folder.metrics)
    log.replace(history)
    before = history[-1]["seconds"] if history else 0.0
    patience = experiment.tracking.patience
    tracker = Tracker(lambda: open_store(folder), patience) if experiment.tracking.enabled else None
    folder.update(status="running")
    for record in history:
        _tell(record, tracker, show)
    with recorded(folder, lock, tracker) as termination:
        with open_driver(
            *(experiment, dataset, partition, folder.checkpoints, address, folder.record().get("workers")),
            notify=notifier(folder, warnings),
            claim=lock.claim,
        ) as driver:
            folder.update(workers=driver.workers)
            done, termination.saves = False, True
            while not done:
                news, done = driver.advance(BEAT)
                lock.claim.check()
                for record in news:
                    log.append(record)
                    _tell(record, tracker, show)
                if termination.came and not done:
                    driver.save()
                    termination.check()
            folder.update(plans=driver.plans(), client_actors=driver.gathered)
            parameters = driver.parameters()
            warnings[:] = dict.fromkeys([*warnings, *driver.warnings()])
        records = log.read()
        wanted = experiment.evaluation
        summary = summarise(records, wanted.targets, wanted.target_metric)
        left = kept(read_progress(checkpoints(folder.checkpoints)[-1]))
        warnings += left_out(left["quarantined"])
        ended = diverged(records, dataset.classes)
        warnings += ended
        draw_curves({experiment.name: records}, folder.figures, wanted.accuracies)
        draw_histograms({experiment.name: left["histograms"]}, folder.figures)
        # The rounds before an interruption, and all of the session that came to the end.
        wall = before + time.perf_counter() - start
        folder.update(status="finished", finished=now(), summary=summary, wall_seconds=wall, diverged=ended, **left)
        # No more rounds are saved, so a signal interrupts at once.
        termination.saves = False
        termination.check()
        if tracker:
            model = partial(save_final_model, experiment, dataset, parameters, constants=folder.constants)
            warnings += close_tracking(tracker, folder, model, partial(_tell_result, folder=folder), show)
    return FinishedRun(folder, experiment, records, summary, parameters, "; ".join(warnings) or None)


def notifier(folder: RunFolder, warnings: list[str]) -> Callable[[str], None]:
    """Takes sentences on trouble that a run survives: to the terminal, into its record, and into `warnings`."""

    def notify(sentence: str) -> None:
        warnings.append(sentence)
        folder.update(notices=[*folder.record().get("notices", []), sentence])
        print(f"hedgerow: {sentence}", file=sys.stderr, flush=True)

    return notify


def open_store(folder: RunFolder) -> Any:
    """The MLflow run of a run folder, made on the first call and remembered in run.json."""
    # mlflow takes seconds to import: only here, in the tracker's thread.
    from hedgerow.platform.tracking.mlflow_store import MlflowStore

    experiment, record = load_experiment(folder.experiment), folder.record()
    said = tags(record, experiment) | {NOTE: run_text(folder)}
    return MlflowStore(experiment, folder.name, experiment.model_dump(mode="json"), said, folder)


def push(name: str, show: object = None) -> list[str]:
    """Send a run's local record to MLflow: what an unreachable server missed, and the final model of a finished run.

    show: see `close_tracking`. Returns a sentence if the final model could not be made. Raises UserError when MLflow
    does not take the rest.
    """
    folder = find_run(name)
    experiment = load_experiment(folder.experiment)
    tracker = Tracker(lambda: open_store(folder), PUSHES * experiment.tracking.patience)
    for record in RunLog(folder.metrics).read():
        tracker.log(record)

    def save(target: Path) -> None:
        data = same_data(folder, experiment, None, fix="load")
        save_final_model(experiment, data[0], last_parameters(experiment, folder, data), target)

    return finish_push(tracker, folder, save, partial(_tell_result, folder=folder), show)


def finish_push(
    tracker: Tracker, folder: RunFolder, save: Callable[[Path], None], result: Callable[[Any], None], show: object
) -> list[str]:
    """Close the store as the run ended. For the arguments see `close_tracking`, for the rest `push`."""
    status = folder.record()["status"]
    ended = {"finished": "FINISHED", "failed": "FAILED"}.get(status, "KILLED")
    try:
        warnings = _finish(tracker, ended, save if status == "finished" else None, result, show)
    except KeyboardInterrupt as error:
        raise Interrupted(folder, signal_of(error), f"`hedgerow push {folder.path}` continues") from None
    if tracker.error:
        raise UserError(
            f"tracking.uri: MLflow did not take the run ({tracker.error}); check that the server is up, then "
            f"`hedgerow push {folder.path}` continues"
        )
    return warnings


def _tell(record: Record, tracker: Tracker | None, show: Show | None) -> None:
    if show:
        show(record)
    if tracker:
        tracker.log(record)


@contextmanager
def recorded(folder: RunFolder, lock: RunLock, tracker: Tracker | None) -> Iterator[Termination]:
    """Whatever ends the run early is written into its record, unless another process has taken the run over; Ctrl-C and
    SIGTERM interrupt it.
    """
    quiet_libraries()
    termination = Termination()
    with handling(termination, signal.SIGINT, signal.SIGTERM):
        try:
            yield termination
        except KeyboardInterrupt as error:
            raise _interrupted(folder, lock, tracker, signal_of(error)) from None
        except BaseException as error:
            if not _is_finished(folder):
                _note_end(folder, lock, tracker, "interrupted" if isinstance(error, RayLost) else "failed")
            if is_exhausted(error):
                raise UserError(
                    f"{folder}: the run does not fit into memory; lower engine.chunk, algorithm.batch_size or the "
                    "sizes of task.model, and run it again"
                ) from error
            raise


def _interrupted(folder: RunFolder, lock: RunLock, tracker: Tracker | None, number: int) -> Interrupted:
    """Note the interruption by a signal; returns what to raise."""
    if _is_finished(folder):
        advice = f"; `hedgerow push {folder}` records it in MLflow" if tracker else ""
        return Interrupted(folder, number, f"{folder} is finished{advice}")
    try:
        _note_end(folder, lock, tracker, "interrupted")
    except KeyboardInterrupt as again:
        number = signal_of(again)
    return Interrupted(folder, number)


def _is_finished(folder: RunFolder) -> bool:
    return bool(folder.record()["status"] == "finished")


def _note_end(folder: RunFolder, lock: RunLock, tracker: Tracker | None, status: str) -> None:
    """Write down that a run has not reached its end."""
    # On a full disk what is told is that, and not that it cannot even be noted.
    with suppress(OSError):
        if not lock.claim.is_lost:
            folder.update(status=status)
    if tracker:
        tracker.finish(lambda store: store.end("KILLED" if status == "interrupted" else "FAILED"))


def close_tracking(
    tracker: Tracker,
    folder: RunFolder,
    save: Callable[[Path], None] | None,
    result: Callable[[Any], None],
    show: object,
) -> list[str]:
    """Record the results of a finished run or search; returns a sentence for each thing that MLflow did not take.

    save: writes the final model, if there is one, into a folder that it makes; None: there is none. result: records
    files and description, given the store. show: a display; if it is `Noted`, it says that this may take a while.
    """
    warnings = _finish(tracker, "FINISHED", save, result, show)
    if tracker.error:
        warnings.append(
            f"MLflow did not take everything ({tracker.error}); nothing is lost: it is all in {folder.path}, and "
            f"`hedgerow push {folder.path}` sends it later"
        )
    return warnings


def _finish(
    tracker: Tracker,
    status: str,
    save: Callable[[Path], None] | None,
    result: Callable[[Any], None],
    show: object,
) -> list[str]:
    warnings: list[str] = []
    models: list[Path] = []

    def closing(store: Any) -> None:
        result(store)
        for model in models:
            store.log_model(model)
        store.end(status)

    if isinstance(show, Noted):
        show.note(RECORDING)
    with TemporaryDirectory(prefix="hedgerow-model-", ignore_cleanup_errors=True) as temporary:
        try:
            # Here and not in the tracker's thread: a thread that is abandoned inside torch can abort the process.
            if save:
                save(Path(temporary) / "model")
                models += Path(temporary).iterdir()
        except Exception as error:  # a model that cannot be exported must not end a run
            warnings.append(f"the final model cannot be recorded in MLflow ({first_line(error)})")
        tracker.finish(closing)
    return warnings


def _tell_result(store: Any, folder: RunFolder) -> None:
    store.log_files(folder.path)
    store.describe(run_text(folder))


def save_final_model(
    experiment: Experiment, dataset: Dataset, parameters: Tree, folder: Path, constants: str | None = None
) -> None:
    """Write the model with these parameters (arrays), which may be those of a sub-model, in MLflow's format.

    Frozen parameters, which are in no run's tree, have the values that the model's constructor gives them.
    constants: the run's record of them, see `compare_constants`. Raises UserError where they differ.
    """
    from hedgerow.platform.tracking.mlflow_store import save_model

    module = build_module(experiment, dataset)
    compare_constants(module, constants)
    for name, parameter in module.named_parameters():
        if name in parameters:
            parameter.data = torch.tensor(parameters[name])
    save_model(module, task_on(dataset, module).prepare(torch.tensor(dataset.x_train[:2])).numpy(), folder)
