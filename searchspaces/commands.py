"""What the commands about searches do, apart from parsing their arguments."""

from collections.abc import Sequence
from pathlib import Path

import click

from hedgerow.searchspaces.config import OptunaSearch
from hedgerow.searchspaces.report import Trial, trial_labels
from hedgerow.searchspaces.results import FinishedSearch
from hedgerow.searchspaces.runner import check_search, resume_search
from hedgerow.searchspaces.runner import search as run_search
from hedgerow.searchspaces.search_file import SearchPlan, load_search
from hedgerow.searchspaces.terminal import SearchTable, closing_tables


def search_all(files: Sequence[Path], overrides: Sequence[str], data_root: Path | None, address: str | None) -> None:
    """Run searches one after the other; all files are read, and their data found, before the first starts."""
    plans = [load_search(file, overrides) for file in files]
    checked = [check_search(plan, data_root) for plan in plans]
    for plan, data in zip(plans, checked, strict=True):
        with search_table(plan) as table:
            finished = run_search(plan, data_root, table, address, data)
        _close(finished)


def resume_one(name: str, address: str | None) -> None:
    """Resume a search and show it as `search` does."""
    with search_table(load_search(Path(name) / "experiment.yaml")) as table:
        finished = resume_search(name, table, address)
    _close(finished)


def search_table(plan: SearchPlan) -> SearchTable:
    """The live table of a search."""
    search = plan.search
    labels = trial_labels([Trial("", overrides, []) for overrides in plan.configurations])
    if isinstance(search, OptunaSearch):
        labels = ["to be proposed"] * search.samples
    return SearchTable(plan.experiment.name, plan.experiment.rounds, labels, metric=search.metric, mode=search.mode)


def _close(finished: FinishedSearch) -> None:
    """The closing tables, the figures, and where everything lies."""
    closing_tables(finished.rows, finished.summary if finished.hedge else None, finished.best_rows)
    path = finished.folder.path
    click.echo(f"search: {path} (results.csv, results.md, experts/)")
    for figure in sorted(finished.folder.figures.glob("*.png")):
        click.echo(f"  figure: {figure}")
    if finished.warning:
        click.echo(f"  warning: {finished.warning}", err=True)
    click.echo("`hedgerow ui` opens MLflow's page on it.")
