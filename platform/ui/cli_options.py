"""Options and arguments that several commands share, and their shell completion."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hedgerow import __version__

PATH = click.Path(path_type=Path)


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Folders of runs, by path or by name under runs/."""
    typed = Path(incomplete)
    folders = [Path("runs"), typed if incomplete.endswith("/") else typed.parent]
    runs = [record.parent for folder in folders for record in folder.glob("*/run.json")]
    named = {str(run) for run in runs} | {run.name for run in runs if run.parent == Path("runs")}
    return sorted(name for name in named if name.startswith(incomplete))


def complete_algorithms(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of algorithms."""
    from hedgerow.algorithms import ALGORITHMS

    return [name for name in ALGORITHMS if name.startswith(incomplete)]


def split_names(context: click.Context, parameter: click.Parameter, value: str) -> list[str]:
    """Split a value into names at commas."""
    return [name.strip() for name in value.split(",") if name.strip()]


def split_seeds(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    """Split a value into different seeds at commas."""
    if value is None:
        return None
    texts = [text.strip() for text in value.split(",")]
    if not all(text.isdecimal() for text in texts) or len(set(map(int, texts))) < len(texts):
        raise click.BadParameter(f"{value!r} is not a list of different whole numbers, such as 0,1,2")
    return [int(text) for text in texts]


def check_job(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Returns the identifier of a job, which becomes part of the names of folders."""
    if value is not None and not re.fullmatch(r"\w[\w.-]*", value, re.ASCII):
        raise click.BadParameter(f"{value!r} is not an identifier of letters, digits, dots and hyphens, such as 1234")
    return value


def announce(*names: str | Path) -> None:
    """Print on a terminal that the command has started: importing torch, Ray and MLflow takes seconds."""
    if sys.stderr.isatty():
        click.echo(f"hedgerow {__version__}: reading {', '.join(map(str, names)) or 'tables'} ...", err=True)


file_argument = click.argument("file", type=PATH)
files_argument = click.argument("files", nargs=-1, required=True, type=PATH)
run_argument = click.argument("run", shell_complete=complete_runs)
runs_argument = click.argument("runs", nargs=-1, required=True, shell_complete=complete_runs)

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key: --set algorithm.lr=0.05; may be repeated.",
)
data_root_option = click.option(
    "--data-root",
    type=PATH,
    default=None,
    help="Folder of the data sets (default: $HEDGEROW_DATA_ROOT, else ./data).",
)
address_option = click.option(
    "--address",
    default=None,
    help="Address of a running Ray cluster (default: $RAY_ADDRESS, else Ray is started on this machine).",
)
job_option = click.option(
    "--job",
    default=None,
    metavar="ID",
    callback=check_job,
    help="Identifier of a job that may start again: names its folders, and continues what it started before.",
)
server_option = click.option(
    "--address",
    default=None,
    metavar="URL",
    help="The cluster's job server (default: $RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265).",
)


def output_option(help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`-o`, `--output`: the file or folder that the command writes."""
    return click.option("-o", "--output", type=PATH, default=None, help=help)
