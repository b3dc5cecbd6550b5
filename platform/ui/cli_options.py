"""What all commands have in common: options of one name for one thing, mistakes told kindly, and `--json`."""

import errno
import signal
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import wraps
from pathlib import Path
from typing import Any

import click

from hedgerow import __version__
from hedgerow.platform.common.errors import Interrupted, UserError
from hedgerow.platform.runs.signals import handling, interrupt, signal_of
from hedgerow.platform.ui.command_output import Answer

FILE = click.Path(path_type=Path)

CONTINUES = "`hedgerow resume {}` continues from the last checkpoint"


def told_kindly(command: Callable[..., Any]) -> Callable[..., Any]:
    """A user's mistake ends in its sentence and exit code 2; Ctrl-C in 130, SIGTERM in 143."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        try:
            with handling(interrupt, signal.SIGTERM):
                command(*args, **kwargs)
        except UserError as error:
            click.echo(f"hedgerow: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            place = f"{error.filename}: " if error.filename else ""
            click.echo(f"hedgerow: {place}{error.strerror}; make room, then {CONTINUES.format('RUN')}", err=True)
            sys.exit(2)
        except KeyboardInterrupt as error:
            click.echo(f"hedgerow: {_interrupted(error)}", err=True)
            sys.exit(128 + signal_of(error))

    return wrapped


def _interrupted(error: BaseException | None) -> str:
    """What was interrupted, and how to go on."""
    # A second signal may have come while the first one was handled.
    while error is not None:
        if isinstance(error, Interrupted):
            return f"interrupted; {error.finished or CONTINUES.format(error.folder)}"
        error = error.__context__
    return "interrupted"


def answering(command: Callable[..., Answer]) -> Callable[..., Any]:
    """A command that returns an Answer, told kindly.

    With `--json` standard output is the answer's document and nothing else: all that is said on the way goes to
    standard error.
    """

    @wraps(command)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> None:
        if not as_json:
            command(*args, **kwargs).tell()
            return
        with redirect_stdout(sys.stderr):
            answer = command(*args, **kwargs)
        answer.print_json()

    told = "Print the result as one JSON document; progress goes to standard error."
    return click.option("--json", "as_json", is_flag=True, help=told)(told_kindly(wrapped))


def complete_runs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Folders of runs: by their path, or by their name under runs/."""
    typed = Path(incomplete)
    folders = [Path("runs"), typed if incomplete.endswith("/") else typed.parent]
    runs = [record.parent for folder in folders for record in folder.glob("*/run.json")]
    named = {str(run) for run in runs} | {run.name for run in runs if run.parent == Path("runs")}
    return sorted(name for name in named if name.startswith(incomplete))


def reading(*names: str | Path) -> None:
    """Say on a terminal that the command has begun: torch, Ray and MLflow take seconds to import."""
    if sys.stderr.isatty():
        click.echo(f"hedgerow {__version__}: reading {', '.join(map(str, names)) or 'tables'} ...", err=True)


set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override one key: --set algorithm.lr=0.05"
)
data_root_option = click.option(
    "--data-root",
    type=FILE,
    default=None,
    help="Folder of the data sets (default: $HEDGEROW_DATA_ROOT, else ./data).",
)
address_option = click.option(
    "--address", default=None, help="A running Ray cluster (default: $RAY_ADDRESS, else Ray is started here)."
)
files_argument = click.argument("files", nargs=-1, required=True, type=FILE)
file_argument = click.argument("file", type=FILE)
run_argument = click.argument("run", shell_complete=complete_runs)


def output_option(told: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`-o`, `--output`: where what the command makes goes."""
    return click.option("-o", "--output", type=FILE, default=None, help=told)
