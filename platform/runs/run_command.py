"""Bodies of the commands `run`, `resume`, `partition` and `export`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from hedgerow.platform.common.errors import UserError, unwritable
from hedgerow.platform.common.table import Table
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data.partition_summary import known_classes, partition_table
from hedgerow.platform.runs.export_model import INPUTS, check_target, export_model
from hedgerow.platform.runs.finished_run import FinishedRun, Round
from hedgerow.platform.runs.runner import executor_of
from hedgerow.platform.runs.runner import resume as resume_run
from hedgerow.platform.runs.runner import run as run_experiment
from hedgerow.platform.runs.seed_series import resume_series
from hedgerow.platform.runtime.factory import build_data, check
from hedgerow.platform.storage.remote import uri_of
from hedgerow.platform.tracking.run_folder import (
    RunFolder,
    SeedSeries,
    find_run,
    names_in_job,
    new_series,
    started_run,
)
from hedgerow.platform.tracking.summary import first_to, meta_regret, target_label
from hedgerow.platform.ui.command_output import CommandOutput, print_warning
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.partition_plots import draw_coverage, draw_partition
from hedgerow.platform.ui.plots import draw_curves
from hedgerow.platform.ui.plotting import optional_figures
from hedgerow.platform.ui.terminal import Progress, closing_table


def run_files(
    files: Sequence[Path],
    overrides: Sequence[str],
    data_root: Path | None,
    address: str | None,
    job: str | None = None,
) -> list[list[FinishedRun]]:
    """Run experiments one after the other, each with all of its seeds. All files are read and all data are checked
    before the first one starts. job: identifier of a job that may have started some of the runs before: finished ones
    are read, the others are resumed. Returns the runs of each file.
    """
    experiments = [load_experiment(file, overrides) for file in files]
    series: list[SeedSeries | None] = [None for _ in files]
    seeded_runs = [(i, seeded) for i, experiment in enumerate(experiments) for seeded in experiment.each_seed()]
    data_sets = [check(seeded, data_root) for _, seeded in seeded_runs]
    names = [None for _ in files] if job is None else names_in_job(experiments, job)
    runs: list[list[FinishedRun]] = [[] for _ in files]
    with _session(experiments, address):
        for (i, seeded), data in zip(seeded_runs, data_sets, strict=True):
            if experiments[i].seeds and not runs[i]:
                # Only now: experiments with the same name need different folders.
                series[i] = new_series(experiments[i], names[i])
            one = series[i]
            name = one.folder_name(seeded.seed) if one else names[i]
            begun = started_run(seeded, name) if job and name else None
            if begun and begun.record()["status"] == "finished":
                runs[i].append(FinishedRun.read(begun))
                continue
            with progress_of(seeded, in_series=one is not None) as progress:
                if begun:
                    runs[i].append(resume_run(str(begun), progress, address))
                else:
                    runs[i].append(run_experiment(seeded, data_root, progress, address, data, series=one, name=name))
    return runs


def resume_one(name: str, address: str | None, changed: bool) -> CommandOutput:
    """Resume a run, with the output of `run`."""
    experiment = load_experiment(find_run(name).experiment)
    with Progress(experiment.name, experiment.rounds) as progress:
        run = resume_run(name, progress, address, changed=changed)
    return runs_output([run])


def resume_seeds(folder: RunFolder, address: str | None, changed: bool) -> list[FinishedRun]:
    """Resume a series of seeds from one of its runs; returns the runs of all seeds."""
    with _session([load_experiment(folder.experiment)], address):
        return resume_series(folder, partial(progress_of, in_series=True), address, None, changed)


def progress_of(experiment: Experiment, in_series: bool) -> Progress:
    """Progress display of a run. in_series: whether its name includes the seed."""
    name = f"{experiment.name} seed {experiment.seed}" if in_series else experiment.name
    return Progress(name, experiment.rounds)


def show_partition(file: Path, overrides: Sequence[str], data_root: Path | None, output: Path | None) -> CommandOutput:
    """Returns the table of a partition, and plots of its samples by client and class."""
    experiment: Experiment = load_experiment(file, overrides)
    dataset, partition = build_data(experiment, data_root)
    key = "--output" if output else "output"
    output = output or Path(experiment.output) / f"{experiment.name}-partition"
    names = known_classes(dataset)
    rows = partition_table(partition, dataset.y_train, names)
    classes, plots = output.with_name(f"{output.name}-coverage"), list[Path]()
    if names:
        try:
            plots += draw_partition(partition, dataset.y_train, names, output)
            plots += draw_coverage(partition, dataset.y_train, names, classes, experiment.name)
        except OSError as error:
            raise unwritable(key, output, error) from None

    def render() -> None:
        Table(rows, f"{experiment.name}: partition").print()
        for path in plots:
            click.echo(f"picture: {path}")

    return CommandOutput({"name": experiment.name, "clients": rows, "pictures": plots}, render)


def add_regrets(finished: list[FinishedRun]) -> None:
    """Add the regret of each algorithm on a stream to its summary, if the offline competitor ran on the same stream."""

    def stream(run: FinishedRun) -> object:
        return run.experiment.task, run.experiment.rounds, run.experiment.seed

    offline = [run for run in finished if run.experiment.algorithm.name == "offline"]
    for run in finished:
        for competitor in offline:
            if stream(run) == stream(competitor):
                run.summary["regret"] = meta_regret(run.records, competitor.records)
                run.folder.update(summary=run.summary)


@contextmanager
def _session(experiments: Sequence[Experiment], address: str | None) -> Iterator[None]:
    """One Ray session for all experiments that need Ray, whose actors stay for the next one."""
    if not any(executor_of(experiment, address) == "ray" for experiment in experiments):
        yield
        return
    from hedgerow.platform.actors.ray_coordinator import keep_warm, shutdown_idle
    from hedgerow.platform.actors.session import ray_session

    with ray_session(address), keep_warm():
        try:
            yield
        finally:
            shutdown_idle()


def add_targets(finished: list[FinishedRun]) -> list[float]:
    """Measure all runs against the targets of any of them; returns those that are accuracies.

    A run whose rounds do not have the metric of a target has no entry for it.
    """
    evaluations = [run.experiment.evaluation for run in finished]
    goals = dict.fromkeys((target, one.target_metric) for one in evaluations for target in one.targets)
    for run in finished:
        costs = {
            target_label(target, metric): first_to(run.records, target, metric)
            for target, metric in goals
            if any(metric in record for record in run.records)
        }
        run.summary["to_target"] = costs | run.summary["to_target"]
    return list(dict.fromkeys(target for one in evaluations for target in one.accuracies))


def runs_output(finished: list[FinishedRun]) -> CommandOutput:
    """Returns the results of all runs, their figures and their folders."""
    add_regrets(finished)
    targets = add_targets(finished)
    comparison: list[Path] = []
    if len(finished) > 1:
        records = {run.experiment.name: [run.records] for run in finished}
        folder = Path(finished[0].experiment.output) / "comparison"
        with optional_figures(print_warning):
            comparison = draw_curves(records, folder, targets)
    figures = [sorted(run.folder.figures.glob("*.png")) for run in finished]

    def render() -> None:
        closing_table([(run.experiment.name, run.summary) for run in finished])
        print_places(finished, figures)
        for figure in comparison:
            if figure.suffix == ".png":
                click.echo(f"comparison: {figure}")
        for hint in hints((run.experiment, run.folder.path) for run in finished):
            click.echo(hint)

    return CommandOutput({"runs": run_entries(finished, figures), "comparison": comparison}, render)


def print_places(finished: list[FinishedRun], figures: list[list[Path]]) -> None:
    """Print the folder of each run, its copy, figures and warnings."""
    for run, plots in zip(finished, figures, strict=True):
        click.echo(f"run: {run.folder.path}")
        if uri := uri_of(run.experiment.checkpoints.storage, run.folder.name):
            click.echo(f"  copy: {uri}")
        for figure in plots:
            click.echo(f"  figure: {figure}")
        if run.ended:
            click.echo(f"  ended after round {run.records[-1]['round']}: {run.ended}")
        if run.warning:
            click.echo(f"  warning: {run.warning}", err=True)


def run_entries(finished: list[FinishedRun], figures: list[list[Path]]) -> list[dict[str, Any]]:
    """Entry of each run in the JSON document."""
    return [
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


def export(name: str, file: Path, round: Round) -> CommandOutput:
    """Write the model of a run to a file. round: see `FinishedRun.module`."""
    check_target(file)
    folder = find_run(name)
    if folder.is_search:
        raise UserError(
            f"{folder.path} is a search; name the run of one of its trials, such as {folder.path}/experts/000"
        )
    run = FinishedRun.read(folder)
    export_model(run, file, round)
    takes = "token sequences" if run.task.mean is None else INPUTS[file.suffix]
    document = {"run": folder.path, "file": file, "input": takes}
    return CommandOutput(document, lambda: click.echo(f"model: {file} (input: {takes})"))
