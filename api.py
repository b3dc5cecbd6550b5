"""What `import hedgerow` offers to scripts and notebooks: run, search, resume and load.

Each shows what it does as it goes, and returns an object with pandas frames and matplotlib figures. What is amiss is
raised as UserError, with its one sentence.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import Override, parse_experiment, read_file, set_value
from hedgerow.platform.config.yaml_reader import Lines
from hedgerow.platform.runs import runner
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runtime.factory import Data, check
from hedgerow.platform.tracking.run_folder import RunFolder, find_run, find_unfinished
from hedgerow.platform.ui.notebook import NotebookProgress, in_notebook
from hedgerow.platform.ui.terminal import Progress
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search, parse_search

File = str | PathLike[str]
Show = bool | runner.Show


def run(
    experiment: File | Mapping[str, Any] | Experiment,
    *,
    data_root: File | None = None,
    address: str | None = None,
    show: Show = True,
    data: Data | None = None,
    **overrides: Any,
) -> FinishedRun:
    """Run an experiment: a file, the same as a dictionary, or what `load_experiment` made of one.

    overrides: keys of the file, with two underscores for a dot: `rounds=20, algorithm__lr=0.05`. data_root: folder of
    the data sets. address: a Ray cluster; None: the one this process is connected to, or a new one on this machine.
    show: progress; False: none; or what is called with every round's record. data: data set and partition, in place of
    those that the experiment names; `resume` and `load` need them again.
    Raises UserError before any work when something is amiss. When it is interrupted, `resume` continues it.
    """
    if not isinstance(experiment, Experiment) or overrides:
        experiment = parse_experiment(*_values(experiment, overrides, without="search"))
    own = None if data is None else check(experiment, None, data)
    with _progress(experiment, show) as shown:
        return runner.run(experiment, _path(data_root), shown, address, own, own is not None)


def search(
    plan: File | Mapping[str, Any] | SearchSpec,
    *,
    data_root: File | None = None,
    address: str | None = None,
    show: bool = True,
    data: Data | None = None,
    **overrides: Any,
) -> FinishedSearch:
    """Search hyperparameters: a file with a `search` section, the same as a dictionary, or what `load_search` made.

    For the other arguments see `run`.
    """
    # Ray Tune takes seconds to import.
    from hedgerow.searchspaces.tune import search_runner as searches

    if not isinstance(plan, SearchSpec) or overrides:
        values, lines, source = _values(plan, overrides)
        if "search" not in values:
            raise UserError(f"{source}: there is no `search` section; add one, such as search={{'space': ...}}")
        plan = parse_search(values, lines, source)
    own = None if data is None else searches.check_search(plan, None, data)
    with _table(plan, show) as shown:
        return searches.search(plan, _path(data_root), shown, address, own, own=own is not None)


def resume(
    folder: File, *, address: str | None = None, show: bool = True, data: Data | None = None
) -> FinishedRun | FinishedSearch:
    """Continue a run or a search from its last checkpoints.

    data: data set and partition of a run that was given its own; their content is compared with what the run began
    with. Raises UserError when it is finished, is no run, or began with other data.
    """
    found = find_unfinished(str(folder))
    if found.is_search:
        from hedgerow.searchspaces.tune import search_runner as searches

        with _table(load_search(found.experiment), show) as shown:
            return searches.resume_search(str(found), shown, address, data)
    with _progress(FinishedRun.read(found).experiment, show) as shown:
        return runner.resume(str(found), shown, address, data)


def load(folder: File, *, data: Data | None = None) -> FinishedRun | FinishedSearch:
    """Read a run or a search from its folder, as far as it has come.

    data: data set and partition of a run that was given its own, which its `parameters` need. Raises UserError when it
    is no run.
    """
    found: RunFolder = find_run(str(folder))
    return FinishedSearch.read(found) if found.is_search else FinishedRun.read(found, data)


def _values(given: Any, overrides: dict[str, Any], without: str = "") -> tuple[dict[str, Any], Lines, str]:
    """Plain values, where they stand, and what to call the place of the others. Raises UserError."""
    lines: Lines = {}
    if isinstance(given, Experiment):
        values, source = given.model_dump(mode="json"), "experiment"
    elif isinstance(given, SearchSpec):
        values, source = given.values | {"search": given.search.model_dump(mode="json", exclude_none=True)}, "search"
    elif isinstance(given, Mapping):
        values, source = dict(given), "experiment"
    elif isinstance(given, str | PathLike):
        values, lines = read_file(Path(given))
        source = str(given)
    else:
        raise UserError(f"an experiment is a file, a dictionary or an Experiment, not {type(given).__name__}")
    values.pop(without, None)
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


def _table(plan: SearchSpec, show: bool) -> AbstractContextManager[Any]:
    from hedgerow.searchspaces.tune.search_command import search_table

    return search_table(plan) if show else nullcontext()


def _path(folder: File | None) -> Path | None:
    return None if folder is None else Path(folder)
