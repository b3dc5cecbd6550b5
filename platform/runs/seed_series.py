"""Runs an experiment once for each of its seeds, and continues such a series."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.compute_choice import choose_device
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.run_session import run_or_resume
from hedgerow.platform.runs.same_settings import decisive_settings, same_settings
from hedgerow.platform.runtime.factory import Data, check
from hedgerow.platform.tracking.run_folder import RunFolder, SeedSeries, started_run

Display = Callable[[Experiment], AbstractContextManager[Any]]
"""Opens the display of the run of an experiment."""


def run_seeds(
    experiments: Sequence[Experiment],
    data: Sequence[Data | None],
    display: Display,
    address: str | None,
    data_root: Path | None,
    own: Data | None = None,
    series: SeedSeries | None = None,
    name: str | None = None,
    changed: bool = False,
) -> list[FinishedRun]:
    """Run an experiment, or a series of them that differ in their seeds; returns the runs in this order.

    data: of each, checked; None: loaded when it is run. own: data set and partition of the caller, in place of those in
    the file. name: of the run or the series, some of whose runs may have been started before: finished ones are read,
    others resumed; None: all are new. changed: see `runner.resume`.
    """

    def result(experiment: Experiment, checked: Data | None) -> FinishedRun:
        return run_or_resume(
            experiment,
            series.folder_name(experiment.seed) if name and series else name,
            lambda: display(experiment),
            lambda folder: FinishedRun.read(folder, own),
            lambda folder, show: runner.resume(folder, show, address, own, changed),
            lambda show: runner.run(experiment, data_root, show, address, checked, own is not None, series, name),
            experiment.model_dump(mode="json"),
        )

    return [result(*pair) for pair in zip(experiments, data, strict=True)]


def resume_series(
    folder: RunFolder, display: Display, address: str | None, own: Data | None, changed: bool = False
) -> list[FinishedRun]:
    """Continue a series of seeds from any of its runs: finished ones are read, started ones resumed, others run.

    own: data set and partition, if the series was started with its own. changed: accept settings that differ from those
    that the series started with. Raises UserError if all runs are finished, or if data or settings differ.
    """
    series = folder.series
    assert series is not None
    experiment = load_experiment(folder.experiment).model_copy(update={"output": str(folder.path.parent)})
    experiments = [experiment.model_copy(update={"seed": seed}) for seed in series.seeds]
    folders = [started_run(one, series.folder_name(one.seed)) for one in experiments]
    if all(one and one.record()["status"] == "finished" for one in folders):
        raise UserError(f"{series.name}: the runs of all seeds are finished: there is nothing to resume")
    if not changed:
        device = choose_device(experiment.resources, address, folder)
        same_settings(folder, decisive_settings(experiment, device), accept=False)
    data: list[Data | None] = [None for _ in experiments]
    if None in folders:
        same_data(folder, experiment, own)
        data = [None if own is None else check(one, None, own) for one in experiments]
    root = folder.record()["data_root"]
    return run_seeds(experiments, data, display, address, root and Path(root), own, series, series.name, changed)
