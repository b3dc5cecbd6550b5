"""Options and arguments that several commands share, and their shell completion."""

import gc
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hedgerow import __version__
from hedgerow.algorithms.core.own_code import own_code
from hedgerow.platform.tracking.ownership import accept

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


@contextmanager
def starting(*names: str | Path) -> Iterator[None]:
    """Print on a terminal that the command has started: importing torch and Ray in this context takes seconds.

    Without Python's garbage collector, which would look at the many new objects again and again, it takes a fifth less.
    """
    if sys.stderr.isatty():
        click.echo(f"hedgerow {__version__}: reading {', '.join(map(str, names)) or 'tables'} ...", err=True)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def _enter_folders(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The user's own code is next to the experiment files of a command."""
    folders = [file.parent for file in (value if isinstance(value, tuple) else (value,)) if file.is_file()]
    own_code().add(folders)
    for folder in folders:
        # The file of an earlier run, whose code is next to the file that it was started with.
        accept(folder)
    return value


def enter_working_folder(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """The user's own code is in the working directory, for which a command writes an experiment file."""
    own_code().add(folders=[Path()])
    return value


def _import_modules(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    own_code().add(modules=value)


def import_module_of(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A dotted path on the command line names its module, as `--import` does."""
    paths = value if isinstance(value, tuple) else (value,)
    own_code().add(modules=[path.rpartition(".")[0] for path in paths if "." in path])
    return value


file_argument = click.argument("file", type=PATH, callback=_enter_folders)
files_argument = click.argument("files", nargs=-1, required=True, type=PATH, callback=_enter_folders)
run_argument = click.argument("run", shell_complete=complete_runs)
runs_argument = click.argument("runs", nargs=-1, required=True, shell_complete=complete_runs)

set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key: --set algorithm.lr=0.05; may be repeated.",
)
import_option = click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    expose_value=False,
    callback=_import_modules,
    help="Module that dotted paths of the file may name, in addition to those next to it; may be repeated.",
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
