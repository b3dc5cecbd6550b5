"""What the commands about experiments do, apart from parsing their arguments."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.factory import build_data, check
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.data.partition_summary import partition_table
from hedgerow.platform.runs.runner import FinishedRun
from hedgerow.platform.runs.runner import resume as resume_run
from hedgerow.platform.runs.runner import run as run_experiment
from hedgerow.platform.storage.remote import uri_of
from hedgerow.platform.tracking.run_folder import find_run
from hedgerow.platform.tracking.summary import meta_regret
from hedgerow.platform.ui.command_output import Answer
from hedgerow.platform.ui.mlflow_server import hints
from hedgerow.platform.ui.partition_plots import draw_coverage, draw_partition
from hedgerow.platform.ui.plots import draw_curves
from hedgerow.platform.ui.terminal import Progress, closing_table, print_rows


def run_all(files: Sequence[Path], overrides: Sequence[str], data_root: Path | None, address: str | None) -> Answer:
    """Run experiments one after the other; all files are read, and their data found, before the first starts."""
    experiments = [load_experiment(file, overrides) for file in files]
    checked = [check(experiment, data_root) for experiment in experiments]
    finished = []
    with _session(experiments, address):
        for experiment, data, following in zip(experiments, checked, [*experiments[1:], None], strict=True):
            with _kept_for(following), Progress(experiment.name, experiment.rounds) as progress:
                finished.append(run_experiment(experiment, data_root, progress, address, data))
    return _closing(finished)


def resume_one(name: str, address: str | None) -> Answer:
    """Resume a run and show it as `run` does."""
    experiment = load_experiment(find_run(name).experiment)
    with Progress(experiment.name, experiment.rounds) as progress:
        finished = resume_run(name, progress, address)
    return _closing([finished])


def show_partition(file: Path, overrides: Sequence[str], data_root: Path | None, output: Path | None) -> Answer:
    """The table of a partition, and the client-by-class picture."""
    experiment: Experiment = load_experiment(file, overrides)
    dataset, partition = build_data(experiment, data_root)
    output = output or Path(experiment.output) / f"{experiment.name}-partition"
    output.parent.mkdir(parents=True, exist_ok=True)
    rows = partition_table(partition, dataset.y_train, dataset.class_names)
    classes = output.with_name(f"{output.name}-coverage")
    drawn = draw_partition(partition, dataset.y_train, dataset.class_names, output)
    drawn += draw_coverage(partition, dataset.y_train, dataset.class_names, classes, experiment.name)

    def tell() -> None:
        print_rows(rows, f"{experiment.name}: partition")
        for path in drawn:
            click.echo(f"picture: {path}")

    return Answer({"name": experiment.name, "clients": rows, "pictures": drawn}, tell)


def _tell_regrets(finished: list[FinishedRun]) -> None:
    """Of learners of a stream, against the offline competitor, where it ran on the same one."""

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
    """One Ray for all of them, where any needs it."""
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
    """The processes of a run on Ray are kept for the one that follows, if there is one that may use them."""
    if following is None or not _on_ray(following):
        yield
        return
    from hedgerow.platform.actors.actor_pool import keep_warm

    with keep_warm():
        yield


def _on_ray(experiment: Experiment) -> bool:
    return experiment.resources.executor != "inline"


def _closing(finished: list[FinishedRun]) -> Answer:
    """The closing table, the figures, and where everything lies."""
    _tell_regrets(finished)
    comparison: list[Path] = []
    if len(finished) > 1:
        records = {run.experiment.name: run.records for run in finished}
        folder = Path(finished[0].experiment.output) / "comparison"
        comparison = draw_curves(records, folder, finished[0].experiment.evaluation.accuracies)
    figures = [sorted(run.folder.figures.glob("*.png")) for run in finished]

    def tell() -> None:
        closing_table([(run.experiment.name, run.summary) for run in finished])
        for run, drawn in zip(finished, figures, strict=True):
            click.echo(f"run: {run.folder.path}")
            if uri := uri_of(run.experiment.checkpoints.storage, run.folder.name):
                click.echo(f"  copy: {uri}")
            for figure in drawn:
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
            "figures": drawn,
            "warning": run.warning,
        }
        for run, drawn in zip(finished, figures, strict=True)
    ]
    return Answer({"runs": runs, "comparison": comparison}, tell)
