"""Implementations of the commands `report` and `compare`."""

from collections.abc import Sequence
from pathlib import Path

import click

from hedgerow.platform.runs.comparison import comparison_output
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.reports.page.page import render_page, write_page
from hedgerow.reports.sections.report_data import read_all


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
    return comparison_output(names, data.compared, metric, targets, data.notes)
