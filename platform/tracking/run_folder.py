"""Run folders: the files of a run, and its record."""

import os
import platform as host
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock

from hedgerow.platform.common.errors import UserError, first_line, unwritable
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import dump_experiment, read_experiment
from hedgerow.platform.storage.atomic_file import Altered, fingerprint, read_verified
from hedgerow.platform.storage.history import METRICS
from hedgerow.platform.storage.remote import Storage, fetch, is_uri, uri_of
from hedgerow.platform.storage.run_lock import RunLock, is_abandoned
from hedgerow.platform.storage.sealed_json import RESTORE_FIX, read_object, write_object
from hedgerow.platform.tracking.ownership import accept, sealed_ownership

PATIENCE = 60.0
"""Seconds to wait for another process that changes the same record."""

COMMIT = "HEDGEROW_GIT_COMMIT"
"""Variable with the commit that a job on a cluster was submitted from, since the job has no git folder."""

SOURCE = "HEDGEROW_SOURCE_COMMIT"
"""Variable with the commit of the package, for a job on a cluster that runs a copy of it."""


@dataclass(frozen=True)
class SeedSeries:
    """Runs of one experiment with several seeds, each in its own folder.

    name: of their folders, without the seed. seeds: all of them, in the order of the runs.
    """

    name: str
    seeds: list[int]

    def folder_name(self, seed: int) -> str:
        """Name of the run folder of a seed."""
        return f"{self.name}-seed{seed}"


@dataclass(frozen=True)
class RunFolder:
    """Folder with experiment.yaml (resolved), run.json, metrics.jsonl, partition.json, checkpoints/ and figures/."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def experiment(self) -> Path:
        return self.path / "experiment.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / METRICS

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def figures(self) -> Path:
        return self.path / "figures"

    @property
    def exists(self) -> bool:
        """Whether there is a record to read."""
        return (self.path / "run.json").exists()

    @property
    def is_search(self) -> bool:
        """Whether it holds a search, with a run folder for each of its trials, instead of one run."""
        return self.record().get("kind") == "search"

    @property
    def search(self) -> "RunFolder | None":
        """Folder of the search to which a trial belongs; None if it is no trial."""
        trials = self.path.absolute().parent
        search = RunFolder(trials.parent)
        return search if trials.name == "experts" and search.exists else None

    def record(self) -> dict[str, Any]:
        """Contents of run.json. Raises UserError if it is damaged, or if the file of a finished run was altered."""
        record = read_object(self.path / "run.json")
        if record["status"] == "finished" and (expected := record.get("experiment_file")):
            try:
                read_verified(self.experiment, expected)
            except OSError as error:
                raise UserError(f"{self.experiment} cannot be read ({first_line(error)}); {RESTORE_FIX}") from None
            except Altered as error:
                raise UserError(
                    f"{self.experiment} is not the file with which the run finished (it {error}); {RESTORE_FIX}"
                ) from None
        return record

    @property
    def status(self) -> str:
        """Status in the record; "interrupted" also if the process of the run, or of a trial's search, is known to be
        gone, see `is_abandoned`.
        """
        status = self.record()["status"]
        if status != "running" or not is_abandoned((self.search or self).path):
            return status
        # Again: it may have ended in between.
        status = self.record()["status"]
        return "interrupted" if status == "running" else status

    @property
    def constants(self) -> str | None:
        """Fingerprint of the model's frozen parameters and buffers; None if none is recorded."""
        return (self.record().get("data") or {}).get("frozen")

    @property
    def series(self) -> SeedSeries | None:
        """Series of seeds that the run belongs to; None if it is a single run."""
        note = self.record().get("series")
        return SeedSeries(**note) if note else None

    def partition(self) -> dict[str, Any]:
        """Contents of partition.json, see `keep_partition`; empty if there is none. Raises UserError."""
        file = self.path / "partition.json"
        return read_object(file) if file.exists() else {}

    def keep_partition(self, values: dict[str, Any]) -> None:
        """Write the result of `data.partition_summary.partition_record`, for reports, which have no data."""
        write_object(self.path / "partition.json", values)

    def update(self, **values: Any) -> None:
        """Change entries of run.json, atomically."""
        file = self.path / "run.json"
        # During a run the tracker's thread writes MLflow's identifiers, and the coordinator's process writes plans.
        with FileLock(self.path / ".run.json.lock", timeout=PATIENCE):
            entries = read_object(file) if self.exists else {}
            if values.get("status") == "finished" and self.experiment.exists():
                # A run that is not finished may continue with a changed file.
                values["experiment_file"] = fingerprint(self.experiment)
            write_object(file, entries | values, indent=2)


@contextmanager
def new_run(
    experiment: Experiment,
    data_root: Path | None,
    resolved: str | None = None,
    series: SeedSeries | None = None,
    name: str | None = None,
) -> Iterator[tuple[RunFolder, RunLock]]:
    """Create the folder of a new run under the experiment's `output`, and hold its lock.

    resolved: text of its experiment.yaml, if it contains more than the experiment. series: that the run belongs to.
    name: of the folder; None: that of the seed in the series, or a new one with the current time.
    """
    name = series.folder_name(experiment.seed) if series else name
    folder = _named_folder(experiment, name) if name else _new_folder(experiment)
    # Locked before it has a record: without one, no other process takes it for a run.
    with RunLock(folder.path) as lock:
        try:
            folder.experiment.write_text(resolved or dump_experiment(experiment))
            folder.update(
                name=folder.name,
                status="running",
                created=now(),
                command=sys.argv,
                data_root=str(data_root.absolute()) if data_root else None,
                versions=versions(),
                git_commit=git_commit(),
                source_commit=source_commit(),
                ownership=sealed_ownership(experiment.tracking.uri),
                **({"series": asdict(series)} if series else {}),
            )
        except OSError as error:
            raise unwritable("output", folder.path, error) from None
        yield folder, lock


def new_series(experiment: Experiment, name: str | None = None) -> SeedSeries:
    """Series of the experiment's `seeds`. name: of the series; None: one that no other series has."""
    names = (name for name in _names(experiment) if not any(Path(experiment.output).glob(f"{name}-seed*")))
    return SeedSeries(name or next(names), experiment.seeds or [experiment.seed])


def names_in_job(experiments: Sequence[Experiment], job: str) -> list[str]:
    """Names of the run folders, or of the series, of a job's experiments. They are the same each time it starts."""
    before: Counter[str] = Counter()
    names = []
    for experiment in experiments:
        before[experiment.name] += 1
        number = before[experiment.name]
        names.append(f"{experiment.name}-{job}" + (f"-{number}" if number > 1 else ""))
    return names


def started_run(experiment: Experiment, name: str) -> RunFolder | None:
    """Folder of a run that was started with this name, fetched if only its copy exists; None if there is none."""
    folder, storage = RunFolder(Path(experiment.output) / name), experiment.checkpoints.storage
    if folder.exists:
        return folder
    if storage and Storage(storage).holds(name):
        return find_run(str(uri_of(storage, name)))
    return None


def _named_folder(experiment: Experiment, name: str) -> RunFolder:
    folder = RunFolder(Path(experiment.output) / name)
    if folder.exists:
        raise UserError(f"{folder.path} exists already; `hedgerow resume {folder.path}` continues it")
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable("output", folder.path, error) from None
    return folder


def _names(experiment: Experiment) -> Iterator[str]:
    """Names of run folders: with the current time, then with a number after it."""
    name = f"{experiment.name}-{datetime.now():%Y%m%d-%H%M%S}"
    yield name
    yield from (f"{name}-{n}" for n in range(2, 1000))


def _new_folder(experiment: Experiment) -> RunFolder:
    output = Path(experiment.output)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable("output", output, error) from None
    for name in _names(experiment):
        folder = RunFolder(output / name)
        try:
            folder.path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable("output", folder.path, error) from None
        if experiment.checkpoints.storage and Storage(experiment.checkpoints.storage).holds(folder.name):
            # The name belongs to another run, started elsewhere in the same second.
            folder.path.rmdir()
            continue
        return folder
    raise UserError(f"output: too many runs named {experiment.name!r} in this second; wait a moment")


def find_run(name: str) -> RunFolder:
    """Find a run by its folder, by its name under runs/, or by the URI of its copy, which is fetched. Raises UserError
    if it is not a run.
    """
    if is_uri(name):
        return _with_ownership(RunFolder(fetch(name, lambda file: read_experiment(file).output)))
    for path in (Path(name), Path("runs") / name):
        if (path / "run.json").exists() and (path / "experiment.yaml").exists():
            return _with_ownership(RunFolder(path))
    raise UserError(f"{name} is not a run: give the folder that `hedgerow run` printed, such as runs/NAME-DATE-TIME")


def _with_ownership(folder: RunFolder) -> RunFolder:
    """The folder, whose code and server are allowed if this user has started the run, or the search of a trial."""
    accept((folder.search or folder).path)
    return folder


def now() -> str:
    """Current time in the format of records."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def find_unfinished(name: str) -> RunFolder:
    """Find a run to resume, as `find_run` does. Raises UserError if it is finished or a trial of a search."""
    folder = find_run(name)
    if search := folder.search:
        raise UserError(f"{folder.path} is a trial of a search: `hedgerow resume {search.path}` continues all trials")
    _check_unfinished(folder)
    return folder


@contextmanager
def unfinished_run(name: str) -> Iterator[tuple[RunFolder, RunLock]]:
    """Find a run as `find_unfinished` does, and hold its lock. Raises UserError if another process runs it."""
    folder = find_unfinished(name)
    with RunLock(folder.path) as lock:
        # The run may have finished while this process checked whether the holder of the lock is alive.
        _check_unfinished(folder)
        yield folder, lock


def _check_unfinished(folder: RunFolder) -> None:
    if folder.record()["status"] == "finished":
        raise UserError(f"{folder.path} is finished: there is nothing to resume")


def versions() -> dict[str, str]:
    """Versions of the software and the machine that determine the results."""
    return {
        "hedgerow": version("hedgerow"),
        **{name: version(name) for name in ("torch", "ray", "mlflow", "numpy")},
        "python": host.python_version(),
        "machine": f"{host.system()} {host.machine()}, {os.cpu_count()} CPUs",
    }


def git_commit() -> str | None:
    """Commit of the working folder, with "-dirty" if it has changes; None outside git."""
    return os.environ.get(COMMIT) or _commit_of(Path.cwd())


def source_commit() -> str | None:
    """Commit of this package, with "-dirty" if its repository has changes; None if git does not track it."""
    if commit := os.environ.get(SOURCE):
        return commit
    package = Path(__file__).resolve().parents[2]
    # An environment may be stored inside the repository of another project.
    return _commit_of(package) if _git(package, "ls-files", "__init__.py") else None


def _commit_of(folder: Path) -> str | None:
    return _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    """Output of a git command in a folder; None if it fails or prints nothing."""
    try:
        process = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True)
    except OSError:
        return None
    return process.stdout.strip() or None
