"""Runs and resumes experiments, and records their results."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from joblib import cpu_count

from hedgerow.algorithms.core.own_code import GIVEN
from hedgerow.platform.actors.actor_room import (
    actors_that_fit,
    choose_actors,
    local_gpus,
    local_resources,
    say_unused_gpus,
)
from hedgerow.platform.actors.forked import Forked, is_prepared
from hedgerow.platform.common.errors import INTERRUPTIONS, Interrupted, ProcessesLost, UserError
from hedgerow.platform.common.memory import is_exhausted
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.common.servers import require_named
from hedgerow.platform.common.signals import TERMINATIONS, Termination, handling, signal_of
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.config.logger_section import build_loggers
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.partition_summary import partition_record
from hedgerow.platform.loggers.logger import LoggedRun, Loggers
from hedgerow.platform.runs.finished_run import TEST_SELECTED, FinishedRun
from hedgerow.platform.runs.own_data import data_record, loop_note, same_data
from hedgerow.platform.runs.run_in_mlflow import logger_of_run
from hedgerow.platform.runs.same_settings import changed_settings_warnings, decisive_settings, same_settings
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import Data, check
from hedgerow.platform.storage.checkpoint import checkpoint_warnings, checkpoints, read_latest, read_progress
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.mirror import Mirror
from hedgerow.platform.storage.run_lock import Claim, RunLock
from hedgerow.platform.tracking.run_folder import RunFolder, SeedSeries, new_run, now, unfinished_run
from hedgerow.platform.tracking.summary import (
    divergence_warnings,
    fedex_warnings,
    kept,
    left_out_warnings,
    summarise,
    unscored_warnings,
)
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.platform.ui.plots import confusion_table, draw_confusion, draw_curves, draw_histograms, draw_staleness
from hedgerow.platform.ui.plotting import optional_figures

if TYPE_CHECKING:
    from hedgerow.platform.actors.ray_coordinator import RayCoordinator
    from hedgerow.platform.runtime.coordinator import Coordinator

ADVANCE_SECONDS = 0.2
"""Seconds of rounds between two reports to the driver."""

MLFLOW = "mlflow"
"""Name of MLflow among the loggers of a run."""


Show = Callable[[RoundRecord], None]
"""Callback for the records of a run as they arrive, such as a progress bar."""


def run(
    experiment: Experiment,
    data_root: Path | None = None,
    show: Show | None = None,
    address: str | None = None,
    data: Data | None = None,
    own: bool = False,
    series: SeedSeries | None = None,
    name: str | None = None,
) -> FinishedRun:
    """Run an experiment from its first round.

    data_root: folder of the data sets. show: called with every round's record. address: a Ray cluster; None: the one
    this process is connected to, or a new one on this machine. data: result of `factory.check`, if it was called.
    own: whether these are the caller's arrays instead of the data in the file. series: that the run belongs to.
    name: of its folder; None: a new one. Raises UserError before any work if something is invalid.
    """
    data = data or check(experiment, data_root)
    build_loggers(experiment.tracking.also)
    with new_run(experiment, data_root, series=series, name=name) as (folder, lock):
        record = {"settings": decisive_settings(experiment), "data": data_record(experiment, data, own)}
        folder.update(**record, **loop_note(experiment, data[0]))
        if account := experiment.privacy_account(len(data[1])):
            folder.update(privacy=asdict(account))
        return _execute(experiment, folder, lock, data, show, address)


def resume(
    name: str,
    show: Show | None = None,
    address: str | None = None,
    data: Data | None = None,
    changed: bool = False,
) -> FinishedRun:
    """Continue a run from its last checkpoint, or from the start if it has none.

    name: its folder, or the URI of its copy. data: data set and partition, if the run was given its own. changed:
    accept and record settings that differ from those that the run started with. Raises UserError if data or settings
    differ otherwise.
    """
    with unfinished_run(name) as (folder, lock):
        experiment = load_experiment(folder.experiment)
        if experiment.tracking.enabled:
            require_named(experiment.tracking.uri, str(folder))
        same_settings(folder, decisive_settings(experiment), changed)
        return _execute(experiment, folder, lock, same_data(folder, experiment, data), show, address)


def _execute(
    experiment: Experiment, folder: RunFolder, lock: RunLock, data: Data, show: Show | None, address: str | None
) -> FinishedRun:
    with Mirror(folder.path, experiment.checkpoints.storage) as mirror:
        finished = _carry_out(experiment, folder, lock, data, show, address)
    return mirror.with_warning(finished)


def _carry_out(
    experiment: Experiment, folder: RunFolder, lock: RunLock, data: Data, show: Show | None, address: str | None
) -> FinishedRun:
    dataset, partition = data
    start = time.perf_counter()
    folder.keep_partition(partition_record(partition, dataset))
    warnings = changed_settings_warnings(folder)
    warnings += checkpoint_warnings(folder.checkpoints.absolute())
    latest = read_latest(folder.checkpoints)
    history: Sequence[RoundRecord] = latest[1]["history"] if latest else []
    before = history[-1]["seconds"] if history else 0.0
    loggers = Loggers(build_loggers(experiment.tracking.also), warnings.append)
    if experiment.tracking.enabled:
        # The last one to end: it may wait for a server.
        loggers.loggers.append((MLFLOW, logger_of_run(folder, data, show, warnings)))
    folder.update(status="running")
    with recorded(folder, lock, loggers) as termination:
        settings = experiment.model_dump(mode="json")
        loggers.call("start", LoggedRun(folder.name, folder.path.absolute(), settings, list(history)))
        for record in history:
            if show:
                show(record)
        with open_coordinator(
            experiment.with_solved_noise(len(partition)),
            *(dataset, partition, folder.checkpoints, address, folder.record().get("parts")),
            notify=notifier(folder, warnings),
            claim=lock.claim,
        ) as coordinator:
            folder.update(parts=coordinator.parts)
            done, termination.saves = False, True
            while not done:
                news, done = coordinator.advance(ADVANCE_SECONDS)
                lock.claim.check()
                for record in news:
                    if show:
                        show(record)
                    loggers.call("log", record)
                if termination.came and not done:
                    coordinator.save()
                    termination.check()
            folder.update(plans=coordinator.plans())
            parameters, ended = coordinator.parameters(), coordinator.ended()
            warnings[:] = dict.fromkeys([*warnings, *coordinator.warnings()])
        records = RunLog(folder.metrics).read()
        evaluation = experiment.evaluation
        summary = summarise(records, evaluation.targets, evaluation.target_metric, experiment.task.modes)
        progress = kept(read_progress(checkpoints(folder.checkpoints)[-1]))
        warnings += left_out_warnings(progress["quarantined"]) + unscored_warnings(records)
        classes = dataset.classes if experiment.task.loss.name == "cross_entropy" else 1
        divergence = divergence_warnings(records, classes)
        warnings += divergence + fedex_warnings(experiment.fedex, records)
        warnings += [TEST_SELECTED] * experiment.selects_on_test
        # Time of the rounds before an interruption, plus the whole session that finished the run.
        results = {"summary": summary, "wall_seconds": before + time.perf_counter() - start, "diverged": divergence}
        if ended:
            results["ended"] = ended
        # Before anything is drawn or sent: neither can lose the results.
        folder.update(status="finished", finished=now(), **results, **progress)
        if confusion := progress.get("confusion_matrix"):
            confusion_table(confusion, dataset.class_names).csv(folder.path / "confusion_matrix.csv")
        # No more rounds are saved, so a signal interrupts at once.
        termination.saves = False
        termination.check()
        with optional_figures(warnings.append):
            draw_curves({experiment.name: [records]}, folder.figures, evaluation.accuracies)
            draw_histograms({experiment.name: progress["histograms"]}, folder.figures)
            draw_staleness({experiment.name: records}, folder.figures)
            if confusion:
                draw_confusion(confusion, dataset.class_names, folder.figures)
        loggers.end("finished", summary)
    own = data if GIVEN.fullmatch(experiment.task.data.name) or (folder.record().get("data") or {}).get("own") else None
    return FinishedRun(folder, experiment, records, summary, parameters, "; ".join(warnings) or None, own)


@contextmanager
def open_coordinator(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    checkpoints: Path,
    address: str | None,
    parts: int | None = None,
    notify: Callable[[str], None] = lambda sentence: None,
    claim: Claim | None = None,
) -> "Iterator[Coordinator | RayCoordinator]":
    """Open the coordinator of an experiment: in this process, or on Ray.

    parts: number of parts that a resumed run started with, however many actors fit now. notify: takes sentences for the
    user about events during the run. claim: see Coordinator.
    """
    resources, executor = experiment.resources, executor_of(experiment, address)
    if executor == "ray":
        # Ray is imported only where it is used.
        from hedgerow.platform.actors.ray_coordinator import coordinator_on_ray

        with coordinator_on_ray(
            experiment, dataset, partition, checkpoints, address, parts, notify, claim
        ) as coordinator:
            yield coordinator
        return
    say_unused_gpus(resources, local_gpus())
    transport = None
    if executor == "processes":
        cohort = experiment.cohort_size(len(partition))
        # The memory of this machine is asked of Ray, whose import takes a second.
        here = [local_resources() if resources.memory_mb else {"CPU": float(cpu_count())}]
        parts = parts or choose_actors(resources, cohort, here)
        workers = max(1, min(parts, actors_that_fit(resources, here)))
        transport = Forked([experiment], dataset, partition, workers)
    elif resources.gpu and not torch.cuda.is_available():
        raise UserError(
            f"resources.gpus_per_actor: {resources.gpus_per_actor:g} is above 0 with `executor: inline`, but "
            "PyTorch finds no GPU on this machine; set it to 0"
        )
    local = build_coordinator([experiment], dataset, partition, [checkpoints], claim, transport, parts or 1)
    local.on_notice = notify
    try:
        yield local
    except ProcessesLost as error:
        raise ProcessesLost(
            f"{error}, perhaps out of memory; `hedgerow resume {checkpoints.parent}` continues from the last checkpoint"
        ) from error
    finally:
        local.close()


def executor_of(experiment: Experiment, address: str | None) -> Literal["inline", "processes", "ray"]:
    """Where the clients of an experiment run. Raises UserError where processes cannot be forked."""
    resources = experiment.resources
    if resources.executor == "processes" and not is_prepared():
        raise UserError(
            "resources.executor: processes cannot be forked here (outside Linux, or from a program with several "
            "threads); set it to inline or ray"
        )
    if resources.executor == "processes" and resources.gpu:
        raise UserError(
            "resources.executor: processes compute on the CPU, and resources.gpus_per_actor is above 0; set the "
            "executor to inline or ray"
        )
    if resources.executor != "auto":
        return resources.executor
    ray = sys.modules.get("ray")
    on_cluster = (address or os.environ.get("RAY_ADDRESS")) not in (None, "local") or (ray and ray.is_initialized())
    return "ray" if on_cluster or resources.gpus_per_actor or not is_prepared() else "processes"


def notifier(folder: RunFolder, warnings: list[str]) -> Callable[[str], None]:
    """Returns a function that reports non-fatal problems: on the terminal, in the run's record, and in `warnings`."""

    def notify(sentence: str) -> None:
        warnings.append(sentence)
        folder.update(notices=[*folder.record().get("notices", []), sentence])
        print(f"hedgerow: {sentence}", file=sys.stderr, flush=True)

    return notify


@contextmanager
def recorded(folder: RunFolder, lock: RunLock, loggers: Loggers) -> Iterator[Termination]:
    """Record the status of a run that ends early, unless another process has taken the run over. Ctrl-C, SIGTERM and
    SIGHUP interrupt the run.
    """
    quiet_libraries()
    termination = Termination()
    with handling(termination, signal.SIGINT, *TERMINATIONS):
        try:
            yield termination
        except KeyboardInterrupt as error:
            termination.is_handled = True
            raise _interrupted(folder, lock, loggers, signal_of(error)) from None
        except BaseException as error:
            if folder.record()["status"] == "finished":
                _end_others(folder, loggers)
            else:
                _note_end(folder, lock, loggers, "interrupted" if isinstance(error, INTERRUPTIONS) else "failed")
            if is_exhausted(error):
                raise UserError(
                    f"{folder}: the run does not fit into memory; lower algorithm.batch_size or the sizes of "
                    "task.model, and run it again"
                ) from error
            raise
        finally:
            termination.is_handled = True


def _interrupted(folder: RunFolder, lock: RunLock, loggers: Loggers, number: int) -> Interrupted:
    """Record the interruption by a signal; returns the exception to raise."""
    if folder.record()["status"] == "finished":
        _end_others(folder, loggers)
        advice = f"; `hedgerow push {folder}` records it in MLflow" if MLFLOW in dict(loggers.loggers) else ""
        return Interrupted(folder, number, f"{folder} is finished{advice}")
    try:
        _note_end(folder, lock, loggers, "interrupted")
    except KeyboardInterrupt as again:
        number = signal_of(again)
    return Interrupted(folder, number)


def _note_end(folder: RunFolder, lock: RunLock, loggers: Loggers, status: str) -> None:
    """Record that a run ended before it was finished."""
    # On a full disk, the original error is reported, not the failure to record the status.
    with suppress(OSError):
        if not lock.claim.is_lost:
            folder.update(status=status)
    loggers.end(status, {})


def _end_others(folder: RunFolder, loggers: Loggers) -> None:
    """End the loggers of a finished run whose figures were interrupted, but for MLflow: `hedgerow push` does that."""
    others = [one for one in loggers.loggers if one[0] != MLFLOW]
    loggers.end("finished", folder.record()["summary"], others)
