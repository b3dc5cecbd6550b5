"""Public Python API for scripts and notebooks: run, search, resume and load.

Each function shows its progress, and returns an object with pandas frames and matplotlib figures. Invalid input raises
UserError, with one sentence per mistake.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.nn import Module

from hedgerow.algorithms.core.algorithm import Algorithm
from hedgerow.algorithms.core.own_code import enter_folders, own_code
from hedgerow.platform.actors.forked import prepare
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.servers import name_server
from hedgerow.platform.config.composition import locate_files
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import Override, parse_experiment, read_file, set_value
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.platform.data import Partition
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runs.passed_objects import Sections, passed_sections, with_passed
from hedgerow.platform.runs.seed_series import resume_series, run_seeds
from hedgerow.platform.runtime.factory import Data, check
from hedgerow.platform.tracking.run_folder import RunFolder, find_run, find_unfinished, new_series
from hedgerow.platform.ui.notebook import NotebookProgress, in_notebook
from hedgerow.platform.ui.terminal import Progress
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search, parse_search

if TYPE_CHECKING:
    from hedgerow.platform.runs.finished_series import FinishedSeries

File = str | PathLike[str]
Show = bool | runner.Show


def run(
    experiment: File | Mapping[str, Any] | Experiment,
    *,
    data_root: File | None = None,
    address: str | None = None,
    show: Show = True,
    data: Any = None,
    model: Callable[..., Module] | None = None,
    algorithm: type[Algorithm] | Algorithm | Mapping[str, Any] | None = None,
    imports: Sequence[str] = (),
    **overrides: Any,
) -> "FinishedRun | FinishedSeries":
    """Run an experiment, given as a file, as a dictionary with the same keys, or as a result of `load_experiment`.

    With `seeds`, such as `seeds=[0, 1, 2]`, it runs once for each seed; the result is a FinishedSeries.
    overrides: keys of the file, with two underscores for a dot: `rounds=20, algorithm__lr=0.05`. data_root: folder of
    the data sets. address: a Ray cluster; None: the one this process is connected to, or a new one on this machine.
    show: True: show progress; False: show nothing; a function: call it with the record of every round. imports: modules
    that dotted paths may name, in addition to those in the folder of the file and the program's own on its import path.

    data, model, algorithm: objects in place of what the experiment names, which need not name any; pass the same ones
    again to `resume` and `load`. data: (x, y), ((x, y), (x_test, y_test)), a list of these with one entry for each
    client, a torch Dataset or DataLoader, a function that returns one of these, or a data set and its partition.
    model: a module class, or a function that builds a module. algorithm: a class, an instance with its
    hyperparameters, or the section of the file.

    Raises UserError before any work starts if the input is invalid. `resume` continues an interrupted run.
    """
    _name_code(experiment, imports)
    prepare()
    passed, data = _passed(data, model, algorithm, overrides)
    if not isinstance(experiment, Experiment) or overrides or passed:
        experiment = parse_experiment(*_values(experiment, overrides, passed, without="search"))
    experiments, root = experiment.each_seed(), _path(data_root)
    checked = [check(one, root, data) for one in experiments]
    series = new_series(experiment) if experiment.seeds else None
    runs = run_seeds(experiments, checked, lambda one: _progress(one, show), address, root, data, series)
    return _series(runs) if series else runs[0]


def _series(runs: list[FinishedRun]) -> "FinishedSeries":
    # Imports scipy, which takes a while.
    from hedgerow.platform.runs.finished_series import FinishedSeries

    return FinishedSeries(runs)


def search(
    spec: File | Mapping[str, Any] | SearchSpec,
    *,
    data_root: File | None = None,
    address: str | None = None,
    show: bool = True,
    data: Any = None,
    model: Callable[..., Module] | None = None,
    algorithm: type[Algorithm] | Algorithm | Mapping[str, Any] | None = None,
    imports: Sequence[str] = (),
    **overrides: Any,
) -> FinishedSearch:
    """Search hyperparameters, given as a file with a `search` section, a dictionary, or a result of `load_search`.

    See `run` for the other arguments.
    """
    _name_code(spec, imports)
    prepare()
    # Ray Tune takes seconds to import.
    from hedgerow.searchspaces.tune import search_runner as searches

    passed, data = _passed(data, model, algorithm, overrides)
    if not isinstance(spec, SearchSpec) or overrides or passed:
        spec = parse_search(*_values(spec, overrides, passed))
    own = None if data is None else searches.check_search(spec, None, data)
    with _table(spec, show) as shown:
        return searches.search(spec, _path(data_root), shown, address, own, own=own is not None)


def resume(
    folder: File,
    *,
    address: str | None = None,
    show: bool = True,
    data: Any = None,
    model: Callable[..., Module] | None = None,
    algorithm: type[Algorithm] | Algorithm | None = None,
    changed: bool = False,
    imports: Sequence[str] = (),
) -> "FinishedRun | FinishedSeries | FinishedSearch":
    """Continue a run or a search from its last checkpoints; of several seeds, all that are not finished.

    data, model, algorithm: objects that the run was started with, see `run`; their content is compared with theirs.
    changed: accept settings in its file that differ from those that it started with, and record them. imports: see
    `run`. Raises UserError if the run is finished, is not a run, or was started with other objects or settings.
    """
    _name_code(None, imports)
    prepare()
    _, data = _passed(data, model, algorithm)
    started = find_run(str(folder))
    if started.series:
        return _series(resume_series(started, lambda one: _progress(one, show), address, data, changed))
    run_folder = find_unfinished(str(started))
    if run_folder.is_search:
        from hedgerow.searchspaces.tune import search_runner as searches

        with _table(load_search(run_folder.experiment), show) as shown:
            return searches.resume_search(str(run_folder), shown, address, data, changed)
    with _progress(FinishedRun.read(run_folder).experiment, show) as shown:
        return runner.resume(str(run_folder), shown, address, data, changed)


def load(
    folder: File,
    *,
    data: Any = None,
    model: Callable[..., Module] | None = None,
    algorithm: type[Algorithm] | Algorithm | None = None,
    imports: Sequence[str] = (),
) -> FinishedRun | FinishedSearch:
    """Read a run or a search from its folder, finished or not.

    data, model, algorithm: objects that the run was started with, see `run`. A run needs its algorithm; `parameters`,
    and the model that a search has `deployed`, need all of them. imports: see `run`. Raises UserError if the folder is
    not a run.
    """
    _name_code(None, imports)
    passed, data = _passed(data, model, algorithm)
    run_folder: RunFolder = find_run(str(folder))
    finished = FinishedSearch.read(run_folder, data) if run_folder.is_search else FinishedRun.read(run_folder, data)
    if "data" in passed and data is None:
        # Now: a later call may pass other data.
        experiment = finished.spec.experiment if isinstance(finished, FinishedSearch) else finished.experiment
        return replace(finished, data=same_data(run_folder, experiment, None, fix="load"))
    return finished


def _name_code(given: Any, imports: Sequence[str]) -> None:
    """The user's own code is next to the file, in modules that are named, and on the import path of the program."""
    enter_folders([Path(given).parent] if isinstance(given, str | PathLike) else [])
    own_code().add(modules=[imports] if isinstance(imports, str) else imports)


def _passed(
    data: Any, model: Any, algorithm: Any, overrides: dict[str, Any] | None = None
) -> tuple[Sections, Data | None]:
    """Sections that name the passed objects, and the data set and the partition if `data` is these two."""
    if overrides is not None and isinstance(algorithm, Mapping):
        # The section of the file, like any other keyword.
        overrides["algorithm"], algorithm = algorithm, None
    is_both = isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Partition)
    return passed_sections(data, model, algorithm), data if is_both else None


def _values(
    given: Any, overrides: dict[str, Any], passed: Sections | None = None, without: str = ""
) -> tuple[dict[str, Any], Lines, str]:
    """Returns the plain values, the place of each key, and the name of the source for messages. Raises UserError."""
    lines: Lines = {}
    if isinstance(given, Experiment):
        values, source = given.model_dump(mode="json"), "experiment"
    elif isinstance(given, SearchSpec):
        values, source = given.values | {"search": given.search.model_dump(mode="json", exclude_none=True)}, "search"
    elif isinstance(given, Mapping):
        values, source = locate_files(dict(given), Path()), "experiment"
        tracking = values.get("tracking")
        name_server(tracking.get("uri") if isinstance(tracking, Mapping) else None)
    elif isinstance(given, str | PathLike):
        values, lines = read_file(Path(given))
        source = str(given)
    else:
        raise UserError(f"an experiment is a file, a dictionary or an Experiment, not {type(given).__name__}")
    values.pop(without, None)
    values = with_passed(values, passed or {})
    for name, value in overrides.items():
        plain = value.item() if isinstance(value, np.generic) else value
        set_value(values, lines, tuple(name.replace("__", ".").split(".")), plain, Override(f"{name}={plain!r}"))
    return values, lines, source


def _progress(experiment: Experiment, show: Show) -> AbstractContextManager[Any]:
    if not isinstance(show, bool):
        return nullcontext(show)
    if not show:
        return nullcontext()
    return (NotebookProgress if in_notebook() else Progress)(experiment.name, experiment.rounds)


def _table(spec: SearchSpec, show: bool) -> AbstractContextManager[Any]:
    from hedgerow.searchspaces.tune.search_command import search_table

    return search_table(spec) if show else nullcontext()


def _path(folder: File | None) -> Path | None:
    return None if folder is None else Path(folder)
