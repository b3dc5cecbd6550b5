"""Runs and resumes experiments, and records their results."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from joblib import cpu_count

from hedgerow.algorithms.core.own_code import GIVEN
from hedgerow.platform.actors.actor_room import (
    actors_that_fit,
    choose_actors,
    local_resources,
)
from hedgerow.platform.actors.forked import Forked
from hedgerow.platform.common.errors import ProcessesLost
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.config.resources import Device
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.loggers.logger import LoggedRun
from hedgerow.platform.runs.compute_choice import check_engine, choose_device, executor_of, say_device
from hedgerow.platform.runs.finished_run import TEST_SELECTED, FinishedRun
from hedgerow.platform.runs.run_in_mlflow import logger_of_run
from hedgerow.platform.runs.run_session import Session, Work, resume_work, start
from hedgerow.platform.runs.same_settings import decisive_settings
from hedgerow.platform.runtime.coordinator import build_coordinator
from hedgerow.platform.runtime.factory import Data, check
from hedgerow.platform.storage.checkpoint import checkpoints, read_latest, read_progress
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.run_lock import Claim
from hedgerow.platform.tracking.run_folder import RunFolder, SeedSeries, started_run
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

if TYPE_CHECKING:
    from hedgerow.platform.actors.ray_coordinator import RayCoordinator
    from hedgerow.platform.runtime.coordinator import Coordinator

ADVANCE_SECONDS = 0.2
"""Seconds of rounds between two reports to the driver."""

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
    account = experiment.privacy_account(len(data[1]))
    note = {"privacy": asdict(account)} if account else {}
    others = (started_run(experiment, series.folder_name(seed)) for seed in series.seeds) if series else ()
    # All runs of a series compute on the device of the first one.
    work = _work(experiment, next(filter(None, others), None), show, address)
    return start(work, data, data_root, own, note, series, name)


def resume(
    name: str,
    show: Show | None = None,
    address: str | None = None,
    data: Data | None = None,
    changed: bool = False,
) -> FinishedRun:
    """Continue a run; see `run_session.resume_work`."""
    return resume_work(
        name, lambda folder: _work(load_experiment(folder.experiment), folder, show, address), data, changed
    )


def _work(
    experiment: Experiment, started: RunFolder | None, show: Show | None, address: str | None
) -> Work[FinishedRun]:
    """started: folder of a run that was started before, whose device is kept."""
    device = choose_device(experiment.resources, address, started)
    check_engine(experiment.engine, device)
    return Work(
        experiment,
        decisive_settings(experiment, device),
        partial(_carry_out, experiment, device, show, address),
        lambda session: logger_of_run(session.folder, session.data, show, session.warnings),
        experiment.tracking.also,
    )


def _carry_out(
    experiment: Experiment, device: Device, show: Show | None, address: str | None, session: Session
) -> FinishedRun:
    """Run all rounds, and record their results."""
    say_device(device, address)
    begun, folder, (dataset, partition) = time.perf_counter(), session.folder, session.data
    latest = read_latest(folder.checkpoints)
    history: Sequence[RoundRecord] = latest[1]["history"] if latest else []
    settings = experiment.model_dump(mode="json")
    session.loggers.call("start", LoggedRun(folder.name, folder.path.absolute(), settings, list(history)))
    for record in history:
        if show:
            show(record)
    with open_coordinator(
        experiment.with_device(device).with_solved_noise(len(partition)),
        *(dataset, partition, folder.checkpoints, address, folder.record().get("parts")),
        notify=session.notify,
        claim=session.lock.claim,
    ) as coordinator:
        folder.update(parts=coordinator.parts)
        done, session.termination.saves = False, True
        while not done:
            news, done = coordinator.advance(ADVANCE_SECONDS)
            session.lock.claim.check()
            for record in news:
                if show:
                    show(record)
                session.loggers.call("log", record)
            if session.termination.came and not done:
                coordinator.save()
                session.termination.check()
        folder.update(plans=coordinator.plans())
        parameters, ended = coordinator.parameters(), coordinator.ended()
        session.warnings[:] = dict.fromkeys([*session.warnings, *coordinator.warnings()])
    records, evaluation = RunLog(folder.metrics).read(), experiment.evaluation
    summary = summarise(records, evaluation.targets, evaluation.target_metric, experiment.task.modes)
    progress = kept(read_progress(checkpoints(folder.checkpoints)[-1]))
    divergence = divergence_warnings(records, dataset.classes if experiment.task.loss.name == "cross_entropy" else 1)
    session.warnings += left_out_warnings(progress["quarantined"]) + unscored_warnings(records) + divergence
    session.warnings += fedex_warnings(experiment.fedex, records)
    session.warnings += [TEST_SELECTED] * experiment.selects_on_test
    confusion = progress.get("confusion_matrix")
    # Time of the rounds before an interruption, plus the whole session that finished the run.
    wall = (history[-1]["seconds"] if history else 0.0) + time.perf_counter() - begun

    def draw() -> None:
        if confusion:
            confusion_table(confusion, dataset.class_names).csv(folder.path / "confusion_matrix.csv")
            draw_confusion(confusion, dataset.class_names, folder.figures)
        draw_curves({experiment.name: [records]}, folder.figures, evaluation.accuracies)
        draw_histograms({experiment.name: progress["histograms"]}, folder.figures)
        draw_staleness({experiment.name: records}, folder.figures)

    results = {"wall_seconds": wall, "diverged": divergence, **({"ended": ended} if ended else {})}
    session.finish(summary, draw, **results, **progress)
    is_own = GIVEN.fullmatch(experiment.task.data.name) or (folder.record().get("data") or {}).get("own")
    own = session.data if is_own else None
    return FinishedRun(folder, experiment, records, summary, parameters, data=own)


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
    """Open the coordinator of an experiment whose device is chosen: in this process, or on Ray.

    parts: number of parts that a resumed run started with, however many actors fit now. notify: takes sentences for the
    user about events during the run. claim: see Coordinator.
    """
    resources, executor = experiment.resources, executor_of(experiment.resources, address)
    if executor == "ray":
        # Ray is imported only where it is used.
        from hedgerow.platform.actors.ray_coordinator import coordinator_on_ray

        with coordinator_on_ray(
            experiment, dataset, partition, checkpoints, address, parts, notify, claim
        ) as coordinator:
            yield coordinator
        return
    transport = None
    if executor == "processes":
        cohort = experiment.cohort_size(len(partition))
        # The memory of this machine is asked of Ray, whose import takes a second.
        here = [local_resources() if resources.memory_mb else {"CPU": float(cpu_count())}]
        parts = parts or choose_actors(resources, cohort, here)
        workers = max(1, min(parts, actors_that_fit(resources, here)))
        transport = Forked([experiment], dataset, partition, workers)
    parts = parts or resources.own_actors
    local = build_coordinator([experiment], dataset, partition, [checkpoints], claim, transport, parts)
    local.on_notice = notify
    try:
        yield local
    except ProcessesLost as error:
        raise ProcessesLost(
            f"{error}, perhaps out of memory; `hedgerow resume {checkpoints.parent}` continues from the last checkpoint"
        ) from error
    finally:
        local.close()
