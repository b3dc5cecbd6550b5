"""Runs an experiment once for each of its seeds, and continues such a series."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.same_settings import decisive_settings, same_settings
from hedgerow.platform.runtime.factory import Data, check
from hedgerow.platform.tracking.run_folder import RunFolder, started_run

Display = Callable[[Experiment], AbstractContextManager[Any]]
"""Opens the display of the run of an experiment."""


def resume_series(
    folder: RunFolder, display: Display, address: str | None, data: Data | None, changed: bool = False
) -> list[FinishedRun]:
    """Continue a series of seeds from any of its runs: finished ones are read, started ones resumed, others run.

    data: data set and partition, if the series was started with its own. changed: accept settings that differ from
    those that the series started with. Returns the runs of all seeds, in their order. Raises UserError if all are
    finished, or if data or settings differ.
    """
    series = folder.series
    assert series is not None
    experiment = load_experiment(folder.experiment)
    here = experiment.model_copy(update={"output": str(folder.path.parent)})
    folders = {seed: started_run(here, series.folder_name(seed)) for seed in series.seeds}
    if all(one and one.record()["status"] == "finished" for one in folders.values()):
        raise UserError(f"{series.name}: the runs of all seeds are finished: there is nothing to resume")
    if not changed:
        same_settings(folder, decisive_settings(experiment), accept=False)
    if None in folders.values():
        same_data(folder, experiment, data)
    root = folder.record()["data_root"]
    runs = []
    for seed, one in folders.items():
        if one and one.record()["status"] == "finished":
            runs.append(FinishedRun.read(one, data))
            continue
        seeded = experiment.model_copy(update={"seed": seed})
        with display(seeded) as shown:
            if one:
                runs.append(runner.resume(str(one), shown, address, data, changed))
            else:
                own = None if data is None else check(seeded, None, data)
                runs.append(runner.run(seeded, root and Path(root), shown, address, own, own is not None, series))
    return runs
