"""Commands about what runs have left."""

from pathlib import Path

import click

from hedgerow.platform.ui.cli_options import answering, complete_runs, output_option
from hedgerow.platform.ui.command_output import Answer

runs_argument = click.argument("runs", nargs=-1, required=True, shell_complete=complete_runs)


@click.command()
@runs_argument
@output_option("Page to write (default: report.html; of a single folder, in that folder).")
@click.option(
    "--mlflow/--no-mlflow", default=True, help="Log the page into the runs' MLflow store, too (default: yes)."
)
@answering
def report(runs: tuple[str, ...], output: Path | None, mlflow: bool) -> Answer:
    """Write one page about RUNS: folders of runs, of searches, or of tables.

    Runs of one experiment with different seeds are drawn together, with bands. The page needs no network.

    Example: hedgerow report runs/digits-fedavg-* runs/digits-feddyn-* -o report.html
    """
    from hedgerow.reports.report_command import write_report

    return write_report(runs, output, mlflow)


@click.command()
@runs_argument
@click.option(
    "--metric", default=None, metavar="NAME", help="Compare this metric (default: what the targets are about)."
)
@click.option("--target", "targets", type=float, multiple=True, help="Compare what it takes to reach this value of it.")
@answering
def compare(runs: tuple[str, ...], metric: str | None, targets: tuple[float, ...]) -> Answer:
    """Compare the experiments of RUNS, paired over seeds: mean ± deviation, and which differences matter.

    Runs of one experiment with different seeds belong together. A sweep stands for its trials, a Hedge search for what
    Hedge itself achieves.

    Example: hedgerow compare runs/digits-fedavg-* runs/digits-feddyn-* --target 0.9
    """
    from hedgerow.reports.report_command import comparison

    return comparison(runs, metric, targets)
