"""Bodies of the commands `search` and `push`, and of `resume` for searches."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from hedgerow.platform.runs.run_command import next_commands, outcome, print_outcome
from hedgerow.platform.runs.run_in_mlflow import push as push_run
from hedgerow.platform.runs.run_session import run_or_resume
from hedgerow.platform.runtime.factory import Data
from hedgerow.platform.storage.run_lock import RunLock
from hedgerow.platform.tracking.run_folder import RunFolder, find_run, names_in_job
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.notebook import in_notebook
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.recording import RECORDING
from hedgerow.searchspaces.results.search_notebook import NotebookTable
from hedgerow.searchspaces.results.search_table import SearchTable, closing_tables
from hedgerow.searchspaces.results.trials import Trial, expert_folder, trial_labels
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search
from hedgerow.searchspaces.tune.search_runner import Begun, check_search, resume_search, search
from hedgerow.searchspaces.tune.search_runner import push as push_search


def search_all(
    files: Sequence[Path],
    overrides: Sequence[str],
    data_root: Path | None,
    address: str | None,
    job: str | None = None,
) -> CommandOutput:
    """Run searches one after another. All files are read and all data are checked before the first search starts.

    job: identifier of a job that may have started some of them before: finished ones are read, the others are resumed.
    """
    specs = [load_search(file, overrides) for file in files]
    datasets = [check_search(spec, data_root) for spec in specs]
    names = [None for _ in specs] if job is None else names_in_job([spec.experiment for spec in specs], job)
    return _searches_output(
        search_or_resume(spec, data_root, address, data, name)
        for spec, data, name in zip(specs, datasets, names, strict=True)
    )


def search_or_resume(
    spec: SearchSpec,
    data_root: Path | None,
    address: str | None,
    data: Data,
    name: str | None,
    note: dict[str, Any] | None = None,
    begun: Begun | None = None,
) -> FinishedSearch:
    """Run a search with its table; one of this name is read if it is finished, and resumed if it was started.

    For the arguments see `search_runner.search`.
    """
    return run_or_resume(
        spec.experiment,
        name,
        lambda: search_table(spec),
        FinishedSearch.read,
        lambda folder, table: resume_search(folder, table, address),
        lambda table: search(spec, data_root, table, address, data, note, begun=begun, name=name),
        spec.resolved,
    )


def resume_one_search(folder: RunFolder, address: str | None, changed: bool) -> CommandOutput:
    """Resume a search, with the output of `search`."""
    spec = load_search(folder.experiment)
    with search_table(spec) as table:
        finished = resume_search(str(folder.path), table, address, changed=changed)
    return _searches_output([finished])


def push_run_or_search(name: str) -> CommandOutput:
    """Upload the records of a run or a search that are missing in MLflow. Raises UserError while it runs."""
    folder = find_run(name)
    # A push records the end, which a run in progress has not reached.
    with RunLock((folder.search or folder).path) if folder.status == "running" else nullcontext():
        warnings = (push_search if folder.is_search else push_run)(str(folder.path), SimpleNamespace(note=click.echo))

    def render() -> None:
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        click.echo(f"{folder.path} is recorded in MLflow.")

    return CommandOutput({"run": folder.path, "warnings": warnings}, render)


def search_table(spec: SearchSpec) -> SearchTable:
    """Live table of a search."""
    section = spec.search
    labels = trial_labels([Trial(f"{i:03d}", overrides, []) for i, overrides in enumerate(spec.configurations)])
    if section.is_one_run:
        labels = [f"one run of {spec.experiment.algorithm.name}"]
    if section.proposes:
        labels = ["to be proposed"] * (section.samples or 1)
    kind = NotebookTable if in_notebook() else SearchTable
    policy = getattr(section, "deploy", "leader")
    name, rounds = spec.experiment.name, spec.experiment.rounds
    ends_early = bool(section.budget or section.ends_trials_by or spec.experiment.early_end)
    return kind(
        *(name, rounds, labels),
        metric=section.metric,
        mode=section.mode,
        policy=policy,
        smooth=section.smooth,
        ends_early=ends_early,
    )


def _searches_output(searches: Iterable[FinishedSearch]) -> CommandOutput:
    """Output of searches. Each is printed as soon as it is finished: the next one may take long."""
    documents, runs = [], []
    model = None
    for finished in searches:
        output = search_output(finished)
        output.render()
        documents.append(output.document)
        runs.append((finished.spec.experiment, finished.folder.path))
        if winner := finished.winner:
            model = model or expert_folder(finished.folder.path, int(winner.name)).path
    lines = [*hints(runs), next_commands([folder for _, folder in runs], model)]
    return CommandOutput({"searches": documents}, lambda: click.echo("\n".join(lines)))


def search_output(finished: FinishedSearch) -> CommandOutput:
    """Output of a search: its results, figures and folder."""
    path, entry = finished.folder.path, outcome(finished.spec.experiment, finished)
    place = f"search: {path} (results.csv, results.md, experts/)"
    if (path / RECORDING).exists():
        place += f"\n  recording: {path / RECORDING} (hedgerow replay)"

    def render() -> None:
        summary = finished.summary if finished.hedge else None
        closing_tables(finished.rows, summary, finished.best_rows, winner=finished.winner_name)
        for theta in finished.thetas:
            theta.table.print()
        if finished.test_selection_warning:
            click.secho(finished.test_selection_warning, fg="red")
        for line in [*finished.deployed_sentences, *finished.work_sentences, *finished.selection_lines]:
            click.echo(line)
        print_outcome(place, entry)

    return CommandOutput(entry | {"trials": finished.rows, "best": finished.best_rows}, render)
