"""Implementations of the commands `report` and `compare`."""

from collections.abc import Sequence
from pathlib import Path

import click

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.reports.analysis.comparison import EXPLAINED, Comparison, compare
from hedgerow.reports.analysis.run_reader import read_all
from hedgerow.reports.analysis.seed_groups import group_by_seed
from hedgerow.reports.page.page import render_page, write_page


def write_report(names: Sequence[str], output: Path | None, mlflow: bool) -> CommandOutput:
    """Write the page, and log it to the MLflow store of the runs. Raises UserError."""
    data = read_all(names)
    if output is None:
        # The argument may be a name under runs/, or the URI of a copy.
        folders = [Path(names[0])] if data.tables else [one.folder.path for one in data.recorded]
        output = (folders[0] if len(names) == 1 else Path()) / "report.html"
    write_page(render_page(data), output)
    mlflow_folders = [one.folder for one in data.recorded if one.record.get("mlflow_run_id")]
    warnings: list[str] = []
    if mlflow and mlflow_folders:
        # mlflow takes seconds to import.
        from hedgerow.reports.page.mlflow_artifact import log_page

        warnings = log_page(mlflow_folders, output)

    def render() -> None:
        click.echo(f"report: {output}")
        for sentence in warnings:
            click.echo(f"  warning: {sentence}", err=True)

    document = {"report": output, "runs": [one.folder.path for one in data.recorded], "warnings": warnings}
    return CommandOutput(document, render)


def comparison(names: Sequence[str], metric: str | None, targets: Sequence[float]) -> CommandOutput:
    """Compare experiments, paired over seeds. Raises UserError."""
    data = read_all(names)
    groups, repeats = group_by_seed(data.compared)
    if len(groups) < 2:
        raise UserError(
            f"{', '.join(names)}: only one experiment, {groups[0].label}, with seed"
            f"{'s' * (len(groups[0].seeds) > 1)} {', '.join(map(str, groups[0].seeds))}; also name runs of another one"
        )
    result = compare(groups, metric, list(targets) or None)
    notes = data.notes + repeats + result.notes
    return CommandOutput(result.as_dict() | {"notes": notes}, lambda: _render_comparison(result, notes))


def _render_comparison(found: Comparison, notes: list[str]) -> None:
    found.table.print()
    found.pair_table().print()
    click.echo(EXPLAINED)
    for note in notes:
        click.echo(f"- {note}")
