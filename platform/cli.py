"""Commands about single experiments."""

import sys
from pathlib import Path

import click

from hedgerow.platform.answer import Answer
from hedgerow.platform.options import (
    address_option,
    answering,
    data_root_option,
    file_argument,
    files_argument,
    output_option,
    set_option,
    told_kindly,
)


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
    from hedgerow.platform.commands import run_all

    return run_all(files, overrides, data_root, address)


@click.command()
@file_argument
@set_option
@answering
def show(file: Path, overrides: tuple[str, ...]) -> Answer:
    """Print the experiment in FILE with every default filled in.

    Example: hedgerow show examples/digits_fedavg.yaml --set algorithm.lr=0.05
    """
    from hedgerow.platform.commands import resolved

    return resolved(file, overrides)


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
    from hedgerow.platform.commands import show_partition

    return show_partition(file, overrides, data_root, output)


@click.command()
@click.option("--uri", default=None, help="MLflow store (default: the SQLite store in ./runs).")
@click.option("--port", default=5000, show_default=True, help="Port on this machine's loopback interface.")
@told_kindly
def ui(uri: str | None, port: int) -> None:
    """Open MLflow's own page on the recorded runs.

    Example: hedgerow ui --port 5001
    """
    from hedgerow.platform.mlflow_store import default_uri, open_page

    sys.exit(open_page(uri or default_uri(Path("runs")), port))
