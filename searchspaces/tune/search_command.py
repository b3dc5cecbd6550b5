"""What the commands about searches do, apart from parsing their arguments."""

from collections.abc import Sequence
from pathlib import Path

import click

from hedgerow.platform.config.loader import dump_experiment, parse_experiment, read_file
from hedgerow.platform.runs.mlflow_sync import push as push_run
from hedgerow.platform.storage.remote import uri_of
from hedgerow.platform.tracking.run_folder import find_run
from hedgerow.platform.ui.command_output import Answer
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.notebook import in_notebook
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.search_notebook import NotebookTable
from hedgerow.searchspaces.results.search_table import SearchTable, closing_tables
from hedgerow.searchspaces.results.trials import Trial, trial_labels
from hedgerow.searchspaces.spaces.search_file import SearchPlan, load_search, parse_search
from hedgerow.searchspaces.spaces.search_section import OptunaSearch
from hedgerow.searchspaces.tune.search_runner import check_search, resume_search
from hedgerow.searchspaces.tune.search_runner import push as push_search
from hedgerow.searchspaces.tune.search_runner import search as run_search


def search_all(files: Sequence[Path], overrides: Sequence[str], data_root: Path | None, address: str | None) -> Answer:
    """Run searches one after the other; all files are read, and their data found, before the first starts."""
    plans = [load_search(file, overrides) for file in files]
    checked = [check_search(plan, data_root) for plan in plans]
    answers, recorded = [], []
    for plan, data in zip(plans, checked, strict=True):
        with search_table(plan) as table:
            finished = run_search(plan, data_root, table, address, data)
        answers.append(closing(finished))
        recorded.append((plan.experiment, finished.folder.path))
        # At once: the next one may take long.
        answers[-1].tell()
    return _all_of(answers, hints(recorded))


def resume_one(name: str, address: str | None) -> Answer:
    """Resume a search and show it as `search` does."""
    plan = load_search(Path(name) / "experiment.yaml")
    with search_table(plan) as table:
        finished = resume_search(name, table, address)
    answer = closing(finished)
    answer.tell()
    return _all_of([answer], hints([(plan.experiment, finished.folder.path)]))


class PlainNotes:
    """A display of notes as plain lines."""

    def note(self, text: str) -> None:
        """Print what is happening now."""
        click.echo(text)


def push_one(name: str) -> None:
    """Push a run or a search, and say so."""
    folder = find_run(name)
    for warning in (push_search if folder.is_search else push_run)(str(folder.path), PlainNotes()):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{folder.path} is recorded in MLflow.")


def resolved(file: Path, overrides: Sequence[str]) -> Answer:
    """An experiment, or a search, with every default filled in."""
    values, lines = read_file(file, overrides)
    if "search" in values:
        plan = parse_search(values, lines, str(file))
        return Answer(plan.resolved, lambda: click.echo(plan.dump(), nl=False))
    experiment = parse_experiment(values, lines, str(file))
    return Answer(experiment.model_dump(mode="json"), lambda: click.echo(dump_experiment(experiment), nl=False))


def search_table(plan: SearchPlan) -> SearchTable:
    """The live table of a search."""
    search = plan.search
    labels = trial_labels([Trial("", overrides, []) for overrides in plan.configurations])
    if isinstance(search, OptunaSearch):
        labels = ["to be proposed"] * search.samples
    kind = NotebookTable if in_notebook() else SearchTable
    return kind(plan.experiment.name, plan.experiment.rounds, labels, metric=search.metric, mode=search.mode)


def _all_of(answers: list[Answer], lines: list[str]) -> Answer:
    """What is left to say of searches whose results were printed already."""
    document = {"searches": [answer.document for answer in answers]}
    return Answer(document, lambda: click.echo("\n".join(lines)) if lines else None)


def closing(finished: FinishedSearch) -> Answer:
    """The closing tables, the figures, and where everything lies."""
    figures, path = sorted(finished.folder.figures.glob("*.png")), finished.folder.path
    copy = uri_of(finished.plan.experiment.checkpoints.storage, finished.folder.name)

    def tell() -> None:
        closing_tables(finished.rows, finished.summary if finished.hedge else None, finished.best_rows)
        click.echo(f"search: {path} (results.csv, results.md, experts/)")
        if copy:
            click.echo(f"  copy: {copy}")
        for figure in figures:
            click.echo(f"  figure: {figure}")
        if finished.warning:
            click.echo(f"  warning: {finished.warning}", err=True)

    document = {
        "name": finished.plan.experiment.name,
        "folder": path,
        "copy": copy,
        "summary": finished.summary,
        "trials": finished.rows,
        "best": finished.best_rows,
        "figures": figures,
        "warning": finished.warning,
    }
    return Answer(document, tell)
