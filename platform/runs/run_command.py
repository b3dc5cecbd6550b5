"""Bodies of the commands `run`, `partition` and `export`, and of `resume` for runs."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click

from hedgerow.platform.common.errors import UserError, unwritable
from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data.partition_summary import known_classes, partition_table
from hedgerow.platform.runs.compute_choice import executor_of
from hedgerow.platform.runs.export_model import INPUTS, check_target, export_model
from hedgerow.platform.runs.finished_run import FinishedRun, Round
from hedgerow.platform.runs.runner import resume
from hedgerow.platform.runs.seed_series import resume_series, run_seeds
from hedgerow.platform.runtime.factory import build_data, check
from hedgerow.platform.storage.remote import uri_of
from hedgerow.platform.tracking.run_folder import RunFolder, find_run, find_unfinished, names_in_job, new_series
from hedgerow.platform.tracking.summary import first_to, meta_regret, target_label
from hedgerow.platform.ui.command_output import CommandOutput, print_warning
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.partition_plots import draw_coverage, draw_partition
from hedgerow.platform.ui.plots import draw_curves
from hedgerow.platform.ui.plotting import optional_figures
from hedgerow.platform.ui.terminal import Progress, closing_table


def run_experiments(
    files: Sequence[Path],
    overrides: Sequence[str],
    seeds: list[int] | None,
    data_root: Path | None,
    address: str | None,
    job: str | None = None,
) -> CommandOutput:
    """Run experiments one after the other, each with all of its seeds, and compare them. All files are read and all
    data are checked before the first one starts.

    seeds: in place of those in the files. job: identifier of a job that may have started some of the runs before:
    finished ones are read, the others are resumed.
    """
    given = [f"seeds={seeds}"] if seeds else []
    experiments = [load_experiment(file, [*overrides, *given]) for file in files]
    seeded = [experiment.each_seed() for experiment in experiments]
    data_sets = [[check(one, data_root) for one in each] for each in seeded]
    names = [None for _ in files] if job is None else names_in_job(experiments, job)
    groups = []
    with _session(experiments, address):
        for experiment, each, data, name in zip(experiments, seeded, data_sets, names, strict=True):
            # Only now: experiments with the same name need different folders.
            series = new_series(experiment, name) if experiment.seeds else None
            display = partial(progress_of, in_series=series is not None)
            groups.append(run_seeds(each, data, display, address, data_root, series=series, name=name))
    return runs_output(groups)


def resume_runs(folder: RunFolder, address: str | None, changed: bool) -> CommandOutput:
    """Resume a run, or all runs of its series, with the output of `run`."""
    experiment = load_experiment(folder.experiment)
    if not folder.series:
        find_unfinished(str(folder.path))
    with _session([experiment], address, folder):
        if folder.series:
            runs = resume_series(folder, partial(progress_of, in_series=True), address, None, changed)
        else:
            with progress_of(experiment, in_series=False) as progress:
                runs = [resume(str(folder.path), progress, address, changed=changed)]
    return runs_output([runs])


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
        Table(rows, f"{experiment.name}: partition", [Column("share of the largest class", unit="%")]).print()
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
def _session(
    experiments: Sequence[Experiment], address: str | None, started: RunFolder | None = None
) -> Iterator[None]:
    """One Ray session for all experiments that need Ray, whose actors stay for the next one.

    started: folder of the run that is resumed.
    """
    if "ray" not in [executor_of(experiment.resources, address, started) for experiment in experiments]:
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


def runs_output(groups: Sequence[list[FinishedRun]]) -> CommandOutput:
    """Returns the results of experiments, each with its runs: one, or one for each seed."""
    finished = [run for group in groups for run in group]
    add_regrets(finished)
    targets = add_targets(finished)
    over_seeds = None
    if any(group[0].folder.series for group in groups):
        # scipy takes a while to import, and an experiment with a single seed needs none of it.
        from hedgerow.platform.runs.over_seeds import OverSeeds

        over_seeds = OverSeeds(groups)
    names = [one.experiment.name + (f" seed {one.experiment.seed}" if over_seeds else "") for one in finished]
    records = over_seeds.records if over_seeds else {run.experiment.name: [run.records] for run in finished}
    folder = Path(finished[0].experiment.output) / (over_seeds.name if over_seeds else "comparison")
    drawn: list[Path] = []
    if len(finished) > 1 or over_seeds:
        with optional_figures(print_warning):
            drawn = draw_curves(records, folder, targets)
    entries = [outcome(run.experiment, run) for run in finished]

    def render() -> None:
        closing_table([(name, run.summary) for name, run in zip(names, finished, strict=True)])
        if over_seeds:
            over_seeds.render()
        for run, entry in zip(finished, entries, strict=True):
            note = f"ended after round {run.records[-1]['round']}: {run.ended}" if run.ended else ""
            print_outcome(f"run: {run.folder.path}", entry, note)
        for figure in drawn:
            if figure.suffix == ".png":
                click.echo(f"{'figure over seeds' if over_seeds else 'comparison'}: {figure}")
        for hint in hints((run.experiment, run.folder.path) for run in finished):
            click.echo(hint)
        folders = [run.folder.path for run in finished]
        click.echo(next_commands(folders, folders[0], compared=len(groups) > 1))

    document: dict[str, Any] = {"runs": entries}
    document |= over_seeds.document | {"figures": drawn} if over_seeds else {"comparison": drawn}
    return CommandOutput(document, render)


def next_commands(folders: Sequence[Path], model: Path | None, compared: bool = False) -> str:
    """A line with the commands that follow. model: folder of a run whose model can be exported."""
    names = shlex.join(map(str, folders))
    commands = [f"report {names}"] + [f"compare {names}"] * compared
    commands += [] if model is None else [f"export {shlex.quote(str(model))} model.pt"]
    return f"Next: {', '.join(f'`hedgerow {words}`' for words in commands)}."


def outcome(experiment: Experiment, finished: Any) -> dict[str, Any]:
    """Entry of a run or a search in the JSON document."""
    return {
        "name": experiment.name,
        "folder": finished.folder.path,
        "copy": uri_of(experiment.checkpoints.storage, finished.folder.name),
        "summary": finished.summary,
        "figures": sorted(finished.folder.figures.glob("*.png")),
        "warning": finished.warning,
    }


def print_outcome(place: str, entry: dict[str, Any], note: str = "") -> None:
    """Print the place of a run or a search, then its copy, figures, note and warning. entry: result of `outcome`."""
    click.echo(place)
    if entry["copy"]:
        click.echo(f"  copy: {entry['copy']}")
    for figure in entry["figures"]:
        click.echo(f"  figure: {figure}")
    if note:
        click.echo(f"  {note}")
    if entry["warning"]:
        click.echo(f"  warning: {entry['warning']}", err=True)


def export(name: str, file: Path, round: Round, client: int | None = None) -> CommandOutput:
    """Write the model of a run to a file. round, client: see `FinishedRun.module`."""
    check_target(file)
    folder = find_run(name)
    if folder.is_search:
        raise UserError(
            f"{folder.path} is a search; name the run of one of its trials, such as {folder.path}/experts/000"
        )
    run = FinishedRun.read(folder)
    export_model(run, file, round, client)
    takes = "token sequences" if run.task.mean is None else INPUTS[file.suffix]
    document = {"run": folder.path, "file": file, "input": takes}
    return CommandOutput(document, lambda: click.echo(f"model: {file} (input: {takes})"))
