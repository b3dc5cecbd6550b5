"""Bodies of the commands `run`, `resume` and `partition`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data.partition_summary import known_classes, partition_table
from hedgerow.platform.runs.runner import FinishedRun
from hedgerow.platform.runs.runner import resume as resume_run
from hedgerow.platform.runs.runner import run as run_experiment
from hedgerow.platform.runtime.factory import build_data, check
from hedgerow.platform.storage.remote import uri_of
from hedgerow.platform.tracking.run_folder import find_run
from hedgerow.platform.tracking.summary import meta_regret
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.partition_plots import draw_coverage, draw_partition
from hedgerow.platform.ui.plots import draw_curves
from hedgerow.platform.ui.terminal import Progress, closing_table, print_rows


def run_all(
    files: Sequence[Path], overrides: Sequence[str], data_root: Path | None, address: str | None
) -> CommandOutput:
    """Run experiments one after the other. All files are read and all data are checked before the first one starts."""
    experiments = [load_experiment(file, overrides) for file in files]
    data_sets = [check(experiment, data_root) for experiment in experiments]
    runs = []
    with _session(experiments, address):
        for experiment, data, following in zip(experiments, data_sets, [*experiments[1:], None], strict=True):
            with _kept_for(following), Progress(experiment.name, experiment.rounds) as progress:
                runs.append(run_experiment(experiment, data_root, progress, address, data))
    return _runs_output(runs)


def resume_one(name: str, address: str | None) -> CommandOutput:
    """Resume a run, with the output of `run`."""
    experiment = load_experiment(find_run(name).experiment)
    with Progress(experiment.name, experiment.rounds) as progress:
        run = resume_run(name, progress, address)
    return _runs_output([run])


def show_partition(file: Path, overrides: Sequence[str], data_root: Path | None, output: Path | None) -> CommandOutput:
    """Returns the table of a partition, and plots of its samples by client and class."""
    experiment: Experiment = load_experiment(file, overrides)
    dataset, partition = build_data(experiment, data_root)
    output = output or Path(experiment.output) / f"{experiment.name}-partition"
    output.parent.mkdir(parents=True, exist_ok=True)
    names = known_classes(dataset)
    rows = partition_table(partition, dataset.y_train, names)
    classes, plots = output.with_name(f"{output.name}-coverage"), []
    if names:
        plots += draw_partition(partition, dataset.y_train, names, output)
        plots += draw_coverage(partition, dataset.y_train, names, classes, experiment.name)

    def render() -> None:
        print_rows(rows, f"{experiment.name}: partition")
        for path in plots:
            click.echo(f"picture: {path}")

    return CommandOutput({"name": experiment.name, "clients": rows, "pictures": plots}, render)


def _add_regrets(finished: list[FinishedRun]) -> None:
    """Add the regret of each algorithm on a stream to its summary, if the offline competitor ran on the same stream."""

    def stream(run: FinishedRun) -> object:
        return run.experiment.task, run.experiment.rounds

    offline = [run for run in finished if run.experiment.algorithm.name == "offline"]
    for run in finished:
        for competitor in offline:
            if stream(run) == stream(competitor):
                run.summary["regret"] = meta_regret(run.records, competitor.records)
                run.folder.update(summary=run.summary)


@contextmanager
def _session(experiments: Sequence[Experiment], address: str | None) -> Iterator[None]:
    """One Ray session for all experiments, if any of them needs Ray."""
    if not any(_on_ray(experiment) for experiment in experiments):
        yield
        return
    from hedgerow.platform.actors.actor_pool import shutdown_idle
    from hedgerow.platform.actors.session import ray_starting

    with ray_starting(address):
        try:
            yield
        finally:
            shutdown_idle()


@contextmanager
def _kept_for(following: Experiment | None) -> Iterator[None]:
    """Keep the actors of a run for the next one, if that runs on Ray too."""
    if following is None or not _on_ray(following):
        yield
        return
    from hedgerow.platform.actors.actor_pool import keep_warm

    with keep_warm():
        yield


def _on_ray(experiment: Experiment) -> bool:
    return experiment.resources.executor != "inline"


def _runs_output(finished: list[FinishedRun]) -> CommandOutput:
    """Returns the results of all runs, their figures and their folders."""
    _add_regrets(finished)
    comparison: list[Path] = []
    if len(finished) > 1:
        records = {run.experiment.name: run.records for run in finished}
        folder = Path(finished[0].experiment.output) / "comparison"
        comparison = draw_curves(records, folder, finished[0].experiment.evaluation.accuracies)
    figures = [sorted(run.folder.figures.glob("*.png")) for run in finished]

    def render() -> None:
        closing_table([(run.experiment.name, run.summary) for run in finished])
        for run, plots in zip(finished, figures, strict=True):
            click.echo(f"run: {run.folder.path}")
            if uri := uri_of(run.experiment.checkpoints.storage, run.folder.name):
                click.echo(f"  copy: {uri}")
            for figure in plots:
                click.echo(f"  figure: {figure}")
            if run.warning:
                click.echo(f"  warning: {run.warning}", err=True)
        for figure in comparison:
            if figure.suffix == ".png":
                click.echo(f"comparison: {figure}")
        for hint in hints((run.experiment, run.folder.path) for run in finished):
            click.echo(hint)

    runs = [
        {
            "name": run.experiment.name,
            "folder": run.folder.path,
            "copy": uri_of(run.experiment.checkpoints.storage, run.folder.name),
            "summary": run.summary,
            "figures": plots,
            "warning": run.warning,
        }
        for run, plots in zip(finished, figures, strict=True)
    ]
    return CommandOutput({"runs": runs, "comparison": comparison}, render)
