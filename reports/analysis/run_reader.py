"""Reads the folders of runs, searches and tables.

Reading needs neither data sets nor Ray, and imports no module that a file names.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.sealed_json import unseal
from hedgerow.platform.tracking.run_folder import RunFolder, find_run
from hedgerow.platform.tracking.summary import summarise
from hedgerow.platform.tracking.tracker import RunLog

if TYPE_CHECKING:
    from hedgerow.searchspaces.results.finished_search import FinishedSearch

ENVIRONMENT = ("created", "finished", "command", "versions", "git_commit")
"""Keys of a search's record that also apply to its trials."""


@dataclass(frozen=True)
class Run:
    """A run: its record (run.json), its resolved file as plain values, and its rounds.

    heading: the name of its method in a table, or the kind of a search that is treated as one run. search: the folder
    of the search, if the run is a trial.
    """

    folder: RunFolder
    record: dict[str, Any]
    values: dict[str, Any]
    records: list[RoundRecord]
    heading: str = ""
    search: RunFolder | None = None

    @property
    def name(self) -> str:
        return str(self.values["name"])

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    @property
    def target_metric(self) -> str:
        return self.values["evaluation"]["target_metric"]

    @property
    def targets(self) -> list[float]:
        return self.values["evaluation"]["targets"]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Result of `summary.summarise` for the rounds so far."""
        return summarise(self.records, self.targets, self.target_metric, self.modes)

    @property
    def modes(self) -> dict[str, str]:
        """Whether each metric that the file names is to be minimised ("min") or maximised ("max"), by name."""
        return {
            choice["name"].rpartition(".")[2]: choice["mode"] for choice in self.values["task"].get("metrics") or []
        }

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished: all rounds, or its targets were reached."""
        return self.record.get("status") == "finished"

    @property
    def is_stream(self) -> bool:
        """Whether the rounds are the tasks of a stream."""
        return "ctm" in self.records[0]


@dataclass(frozen=True)
class Search:
    """A search: its trials that have started, and Hedge's rounds if it is a Hedge search."""

    folder: RunFolder
    record: dict[str, Any]
    finished: "FinishedSearch"
    trials: list[Run]

    def as_learner(self) -> Run:
        """Hedge as one run: each round has the experts' results, averaged by the weights before that round."""
        spec = self.finished.spec
        values = spec.experiment.model_dump(mode="json") | {"search": spec.search.model_dump(mode="json")}
        records = [{"round": record["round"], **record["expected"]} for record in self.finished.hedge]
        if values["task"]["partition"]["kind"] == "stream":
            # Hedge's running mean on new tasks, with the weights of each round.
            sums = accumulate(record["test_accuracy"] for record in records)
            records = [{**r, "ctm": total / n} for n, (r, total) in enumerate(zip(records, sums, strict=True), 1)]
        return Run(self.folder, self.record, values, records, "Hedge")


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
    searches: list[Search] = field(default_factory=list)
    tables: list[TableResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """One sentence per run that cannot be shown."""

    @property
    def recorded(self) -> list[Run | Search]:
        """The runs and the searches, without trials."""
        return [*self.runs, *self.searches]

    @property
    def all_runs(self) -> list[Run]:
        """The runs, then the trials of searches."""
        return self.runs + [trial for search in self.searches for trial in search.trials]

    @property
    def learners(self) -> list[Run]:
        """Each Hedge search as one run."""
        return [search.as_learner() for search in self.searches if search.finished.hedge]

    @property
    def compared(self) -> list[Run]:
        """The runs, the trials of sweeps, and each Hedge search as one run."""
        sweeps = [search for search in self.searches if not search.finished.hedge]
        return [*self.runs, *(trial for search in sweeps for trial in search.trials), *self.learners]


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
    record = folder.record()
    if record.get("kind") == "search":
        data.searches.append(_search(folder, record, headings))
    else:
        data.runs.append(_run(folder, record))


def _run(folder: RunFolder, record: dict[str, Any], heading: str = "", search: RunFolder | None = None) -> Run:
    try:
        # The file is resolved: it has every key, and the user's own algorithm need not be importable here.
        values, _ = parse_yaml(folder.experiment.read_text(encoding="utf-8"), lambda n: f"{folder.experiment}:{n}")
        return Run(folder, record, dict(values), RunLog(folder.metrics).read(), heading, search)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder.experiment} cannot be read ({first_line(error)})") from None


def _search(folder: RunFolder, record: dict[str, Any], headings: Sequence[str]) -> Search:
    # Imports Ray Tune, which takes seconds and is not needed for plain runs.
    from hedgerow.searchspaces.results.finished_search import FinishedSearch

    finished = FinishedSearch.read(folder)
    shared = {key: record[key] for key in ENVIRONMENT if key in record}
    trials = [
        _run(expert, shared | expert.record(), headings[int(trial.name)] if headings else "", folder)
        for trial in finished.trials
        if trial.records
        for expert in [RunFolder(folder.path / "experts" / trial.name)]
    ]
    return Search(folder, record, finished, trials)


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
