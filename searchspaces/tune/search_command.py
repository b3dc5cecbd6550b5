"""Bodies of the commands `search`, `resume` and `push`."""

from collections.abc import Sequence
from pathlib import Path

import click

from hedgerow.platform.runs.run_command import resume_one
from hedgerow.platform.runs.run_in_mlflow import push as push_run
from hedgerow.platform.storage.remote import uri_of
from hedgerow.platform.tracking.run_folder import find_run, names_in_job
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.notebook import in_notebook
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.recording import RECORDING
from hedgerow.searchspaces.results.search_notebook import NotebookTable
from hedgerow.searchspaces.results.search_table import SearchTable, closing_tables
from hedgerow.searchspaces.results.trials import Trial, trial_labels
from hedgerow.searchspaces.spaces.search_file import SearchSpec, load_search
from hedgerow.searchspaces.tune.search_runner import check_search, finish_started, resume_search
from hedgerow.searchspaces.tune.search_runner import push as push_search
from hedgerow.searchspaces.tune.search_runner import search as run_search


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
    outputs, runs = [], []
    names = [None for _ in specs] if job is None else names_in_job([spec.experiment for spec in specs], job)
    for spec, data, name in zip(specs, datasets, names, strict=True):
        with search_table(spec) as table:
            finished = finish_started(spec, name, table, address)
            if finished is None:
                finished = run_search(spec, data_root, table, address, data, name=name)
        outputs.append(search_output(finished))
        runs.append((spec.experiment, finished.folder.path))
        # Rendered now instead of at the end: the next search may take long.
        outputs[-1].render()
    return _searches_output(outputs, hints(runs))


def resume_run_or_search(name: str, address: str | None, changed: bool) -> CommandOutput:
    """Resume a run or a search, with the output of `run` or `search`."""
    folder = find_run(name)
    if not folder.is_search:
        return resume_one(str(folder.path), address, changed)
    spec = load_search(folder.experiment)
    with search_table(spec) as table:
        finished = resume_search(str(folder.path), table, address, changed=changed)
    output = search_output(finished)
    output.render()
    return _searches_output([output], hints([(spec.experiment, finished.folder.path)]))


class PlainNotes:
    """Prints notes as plain lines."""

    def note(self, text: str) -> None:
        click.echo(text)


def push_run_or_search(name: str) -> CommandOutput:
    """Upload the records of a run or a search that are missing in MLflow."""
    folder = find_run(name)
    warnings = (push_search if folder.is_search else push_run)(str(folder.path), PlainNotes())

    def render() -> None:
        for warning in warnings:
            click.echo(f"warning: {warning}", err=True)
        click.echo(f"{folder.path} is recorded in MLflow.")

    return CommandOutput({"run": folder.path, "warnings": warnings}, render)


def search_table(spec: SearchSpec) -> SearchTable:
    """Live table of a search."""
    search = spec.search
    labels = trial_labels([Trial("", overrides, []) for overrides in spec.configurations])
    if search.is_one_run:
        labels = [f"one run of {spec.experiment.algorithm.name}"]
    if search.proposes:
        labels = ["to be proposed"] * (search.samples or 1)
    kind = NotebookTable if in_notebook() else SearchTable
    policy = getattr(search, "deploy", "leader")
    name, rounds = spec.experiment.name, spec.experiment.rounds
    return kind(name, rounds, labels, metric=search.metric, mode=search.mode, policy=policy, smooth=search.smooth)


def _searches_output(outputs: list[CommandOutput], lines: list[str]) -> CommandOutput:
    """Output of several searches whose results are already printed; prints only `lines`."""
    document = {"searches": [output.document for output in outputs]}
    return CommandOutput(document, lambda: click.echo("\n".join(lines)) if lines else None)


def search_output(finished: FinishedSearch) -> CommandOutput:
    """Output of a search: its results, figures and folder."""
    figures, path = sorted(finished.folder.figures.glob("*.png")), finished.folder.path
    copy = uri_of(finished.spec.experiment.checkpoints.storage, finished.folder.name)

    def render() -> None:
        summary = finished.summary if finished.hedge else None
        closing_tables(finished.rows, summary, finished.best_rows, winner=finished.winner_name)
        for theta in finished.thetas:
            theta.table.print()
        if finished.test_selection_warning:
            click.secho(finished.test_selection_warning, fg="red")
        for line in [*finished.deployed_sentences, *finished.budget_sentences, *finished.selection_lines]:
            click.echo(line)
        click.echo(f"search: {path} (results.csv, results.md, experts/)")
        if (path / RECORDING).exists():
            click.echo(f"  recording: {path / RECORDING} (hedgerow replay)")
        if copy:
            click.echo(f"  copy: {copy}")
        for figure in figures:
            click.echo(f"  figure: {figure}")
        if finished.warning:
            click.echo(f"  warning: {finished.warning}", err=True)

    document = {
        "name": finished.spec.experiment.name,
        "folder": path,
        "copy": copy,
        "summary": finished.summary,
        "trials": finished.rows,
        "best": finished.best_rows,
        "figures": figures,
        "warning": finished.warning,
    }
    return CommandOutput(document, render)
