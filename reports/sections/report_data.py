"""Reads the folders of runs, searches and tables for a report, without importing a module that a file names."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.storage.sealed_json import unseal
from hedgerow.platform.tracking.run_folder import RunFolder, find_run

if TYPE_CHECKING:
    from hedgerow.searchspaces.results.finished_search import FinishedSearch


@dataclass(frozen=True)
class TableResult:
    """A published table with the results of its runs, as `hedgerow table` prints it."""

    title: str
    rows: list[dict[str, str]]
    explained: str
    remarks: list[str]


@dataclass
class ReportData:
    """All runs, searches and tables that were named on the command line."""

    runs: list[Run] = field(default_factory=list)
    searches: "list[FinishedSearch]" = field(default_factory=list)
    tables: list[TableResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """One sentence per run that cannot be shown."""

    @property
    def recorded(self) -> "list[Run | FinishedSearch]":
        """The runs and the searches, without trials."""
        return [*self.runs, *self.searches]

    @property
    def all_runs(self) -> list[Run]:
        """The runs, then the trials of searches."""
        return self.runs + [trial for search in self.searches for trial in search.runs]

    @property
    def learners(self) -> list[Run]:
        """Each Hedge search as one run."""
        return [search.as_learner() for search in self.searches if search.hedge]

    @property
    def compared(self) -> list[Run]:
        """The runs, the trials of sweeps, and each Hedge search as one run."""
        sweeps = [search for search in self.searches if not search.hedge]
        return [*self.runs, *(trial for search in sweeps for trial in search.runs), *self.learners]


def read_all(names: Sequence[str]) -> ReportData:
    """Read folders of runs, searches and tables. Raises UserError for other folders, or if no run has a round.

    names: folders, or names under runs/.
    """
    data = ReportData()
    for name in dict.fromkeys(names):
        if (Path(name) / "table.json").exists():
            _read_table(Path(name), data)
        else:
            _add(find_run(name), data)
    if not any(run.records for run in data.all_runs):
        raise UserError(f"{names[0]} has no finished round to report yet; wait for the first round")
    data.notes += [f"{run.folder.path} has no finished round yet." for run in data.runs if not run.records]
    data.runs = [run for run in data.runs if run.records]
    return data


def _add(folder: RunFolder, data: ReportData, headings: Sequence[str] = ()) -> None:
    """Add a run or a search, unless it was added before."""
    if any(one.folder.path.resolve() == folder.path.resolve() for one in data.recorded):
        return
    if not folder.is_search:
        data.runs.append(Run.read(folder))
        return
    # Imports Ray Tune, which takes seconds and is not needed for plain runs.
    from hedgerow.searchspaces.results.finished_search import FinishedSearch

    data.searches.append(FinishedSearch.read(folder, headings=headings))


def _read_table(folder: Path, data: ReportData) -> None:
    """Add a table and the runs behind it, which are stored next to the folder `tables`, two levels up."""
    try:
        document = unseal(json.loads((folder / "table.json").read_text()))
        title = f"{document['table']}: {document['title']}"
        table = TableResult(title, document["rows"], document["explained"], document["remarks"])
        runs = {line["run"]: line["headings"] for line in document["lines"]}
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{folder / 'table.json'} is damaged; `hedgerow table --report` rewrites it") from None
    for run, headings in runs.items():
        _add(RunFolder(folder.resolve().parent.parent / run), data, headings)
    data.tables.append(table)
