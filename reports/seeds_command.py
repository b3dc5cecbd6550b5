"""Bodies of the commands `run` and `resume`, including experiments with several seeds."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runs.run_command import (
    add_regrets,
    add_targets,
    print_places,
    resume_seeds,
    run_entries,
    run_files,
    runs_output,
)
from hedgerow.platform.tracking.run_folder import find_run
from hedgerow.platform.ui.command_output import CommandOutput, print_warning
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.plots import draw_curves
from hedgerow.platform.ui.plotting import optional_figures
from hedgerow.platform.ui.terminal import closing_table

CAPTION = "Mean over seeds [95 % confidence interval of the mean by Student's t]; bands in figures: standard deviation"


def run_experiments(
    files: Sequence[Path],
    overrides: Sequence[str],
    seeds: list[int] | None,
    data_root: Path | None,
    address: str | None,
    job: str | None = None,
) -> CommandOutput:
    """Run experiments, each with its seeds, and compare them. seeds: in place of those in the files. job: see
    `run_files`.
    """
    given = [f"seeds={seeds}"] if seeds else []
    runs = run_files(files, [*overrides, *given], data_root, address, job)
    if all(group[0].folder.series is None for group in runs):
        return runs_output([run for group in runs for run in group])
    return _series_output(runs)


def resume_any(name: str, address: str | None, changed: bool) -> CommandOutput:
    """Resume a run, all runs of its series, or a search."""
    folder = find_run(name)
    if folder.series:
        return _series_output([resume_seeds(folder, address, changed)])
    # Imports Ray Tune, which takes seconds.
    from hedgerow.searchspaces.tune.search_command import resume_run_or_search

    return resume_run_or_search(str(folder.path), address, changed)


def _series_output(groups: list[list[FinishedRun]]) -> CommandOutput:
    """Output of several experiments with their runs: a table over seeds, figures with bands, paired differences."""
    # scipy takes a while to import, and an experiment with a single seed needs none of it.
    from hedgerow.reports.analysis.finished_series import FinishedSeries, series_table
    from hedgerow.reports.report_command import comparison

    finished = [run for group in groups for run in group]
    add_regrets(finished)
    targets = add_targets(finished)
    series = [FinishedSeries(group) for group in groups]
    first = series[0].series
    output = Path(finished[0].experiment.output)
    folder = output / (first.name if first and len(series) == 1 else "comparison")
    table = series_table(series, "Over seeds")
    labels = table.cells["experiment"]
    records = {label: [run.records for run in one.runs] for label, one in zip(labels, series, strict=True)}
    bands: list[Path] = []
    with optional_figures(print_warning):
        bands = draw_curves(records, folder, targets)
    figures = [sorted(run.folder.figures.glob("*.png")) for run in finished]
    compared, note = None, ""
    if len(series) > 1:
        try:
            compared = comparison([str(run.folder.path) for run in finished], None, ())
        except UserError as error:
            note = str(error)

    def render() -> None:
        closing_table([(f"{run.experiment.name} seed {run.experiment.seed}", run.summary) for run in finished])
        table.print()
        click.echo(CAPTION)
        if compared:
            compared.render()
        if note:
            click.echo(f"no comparison: {note}")
        print_places(finished, figures)
        for figure in bands:
            if figure.suffix == ".png":
                click.echo(f"figure over seeds: {figure}")
        for hint in hints((run.experiment, run.folder.path) for run in finished):
            click.echo(hint)

    experiments = [
        {
            "name": one.name,
            "series": one.series.name if one.series else None,
            "seeds": one.seeds,
            "over_seeds": {name: asdict(estimate) for name, estimate in one.estimates.items()},
        }
        for one in series
    ]
    document = {
        "runs": run_entries(finished, figures),
        "experiments": experiments,
        "figures": bands,
        "comparison": compared.document if compared else None,
    }
    return CommandOutput(document, render)
