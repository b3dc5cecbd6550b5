"""Implementations of the commands `report` and `compare`."""

from collections.abc import Sequence
from pathlib import Path

import click

from hedgerow.platform.common.errors import first_line
from hedgerow.platform.config.loader import read_experiment
from hedgerow.platform.runs.comparison import comparison_output
from hedgerow.platform.tracking.run_folder import RunFolder
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
        warnings = _log_page(mlflow_folders, output)

    def render() -> None:
        click.echo(f"report: {output}")
        for sentence in warnings:
            click.echo(f"  warning: {sentence}", err=True)

    document = {"report": output, "runs": [one.folder.path for one in data.recorded], "warnings": warnings}
    return CommandOutput(document, render)


def _log_page(folders: Sequence[RunFolder], page: Path) -> list[str]:
    """Log the page as `report/NAME.html` of each run; returns a sentence for each failure."""
    # mlflow takes seconds to import.
    from hedgerow.platform.tracking.mlflow_store import MlflowClient, require_local_artifacts, store_uri

    sentences = []
    for folder in folders:
        try:
            client, run_id = MlflowClient(store_uri(folder)), folder.record()["mlflow_run_id"]
            require_local_artifacts(client, read_experiment(folder.experiment).tracking.uri, run_id)
            client.log_artifact(run_id, str(page), "report")
        except Exception as error:  # a failure of the tracking server must not lose the page
            sentences.append(
                f"MLflow did not accept the page for {folder.name} ({first_line(error)}); the page is stored in {page}"
            )
    return sentences


def comparison(names: Sequence[str], metric: str | None, targets: Sequence[float]) -> CommandOutput:
    """Compare experiments, paired over seeds. Raises UserError."""
    data = read_all(names)
    return comparison_output(names, data.compared, metric, targets, data.notes)
