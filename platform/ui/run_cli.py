"""Commands about single experiments."""

import sys
from pathlib import Path

import click

from hedgerow.platform.ui.cli_options import (
    address_option,
    answering,
    complete_runs,
    data_root_option,
    file_argument,
    files_argument,
    output_option,
    reading,
    set_option,
    told_kindly,
)
from hedgerow.platform.ui.command_output import Answer


@click.command()
@files_argument
@set_option
@data_root_option
@address_option
@answering
def run(files: tuple[Path, ...], overrides: tuple[str, ...], data_root: Path | None, address: str | None) -> Answer:
    """Run the experiments in FILES, one after the other, and compare them.

    Example: hedgerow run examples/digits_fedavg.yaml --set rounds=20
    """
    reading(*files)
    from hedgerow.platform.runs.run_command import run_all

    return run_all(files, overrides, data_root, address)


@click.command()
@file_argument
@set_option
@data_root_option
@output_option("Picture to draw, without its ending (default: NAME-partition in the experiment's output folder).")
@answering
def partition(file: Path, overrides: tuple[str, ...], data_root: Path | None, output: Path | None) -> Answer:
    """Print the partition of FILE over its clients, and draw it.

    Example: hedgerow partition examples/digits_fedavg.yaml --set task.partition.alpha=0.1 -o picture
    """
    from hedgerow.platform.runs.run_command import show_partition

    return show_partition(file, overrides, data_root, output)


@click.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--uri", default=None, help="MLflow store, in place of a run's: sqlite:///FILE, or a tracking server.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port on this machine's loopback interface (default: the first free one from 5000 on).",
)
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@told_kindly
def ui(run: str | None, uri: str | None, port: int | None, browse: bool) -> None:
    """Show the store of RUN on MLflow's own page, until Ctrl-C.

    RUN is the folder of a run or a search; without it, the page shows the store of the runs in ./runs.

    Example: hedgerow ui --open
    """
    from hedgerow.platform.ui.mlflow_server import open_page

    sys.exit(open_page(run, uri, port, browse))


def complete_algorithms(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of algorithms."""
    from hedgerow.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


@click.group()
def new() -> None:
    """Write an experiment file with every key explained, or an algorithm of your own with its test.

    Nothing is ever overwritten.

    Example: hedgerow new experiment mine
    """


@new.command()
@click.argument("name")
@click.option(
    "--algorithm",
    default="fedavg",
    show_default=True,
    metavar="NAME",
    shell_complete=complete_algorithms,
    help="Its algorithm, which decides what else the file needs; or the dotted path of your own.",
)
@set_option
@data_root_option
@answering
def experiment(name: str, algorithm: str, overrides: tuple[str, ...], data_root: Path | None) -> Answer:
    """Write NAME.yaml, an experiment that runs as it is.

    Every key stands in it, with its default and its description.

    Example: hedgerow new experiment mine --algorithm feddyn --set task.model.hidden=[100]
    """
    from hedgerow.platform.ui.starter_files import new_experiment

    return new_experiment(name, algorithm, overrides, data_root)


@new.command()
@click.argument("name")
@answering
def algorithm(name: str) -> Answer:
    """Write NAME.py, a working algorithm to begin with.

    Its test, test_NAME.py, is written beside it, into the present folder, and passes.

    Example: hedgerow new algorithm my_average
    """
    from hedgerow.platform.ui.starter_files import new_algorithm

    return new_algorithm(name)
