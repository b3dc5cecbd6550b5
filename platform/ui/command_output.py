"""Output of commands: the result as text or as one JSON document, and user errors as one sentence each."""

import errno
import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TextIO

import click

from hedgerow.platform.common.errors import DENIED, Interrupted, UserError, on_full_disk
from hedgerow.platform.common.own_code_errors import own_errors
from hedgerow.platform.common.signals import TERMINATIONS, handling, interrupt, signal_of

CONTINUES = "`hedgerow resume {}` continues from the last checkpoint"


@dataclass(frozen=True)
class CommandOutput:
    """Result of a command.

    document: the complete result, for `--json`. render: prints it for people.
    """

    document: dict[str, Any]
    render: Callable[[], None]

    def print_json(self) -> None:
        """Print the document to standard output."""
        click.echo(json.dumps(_json_value(self.document), indent=2, ensure_ascii=False, allow_nan=False))


def print_warning(sentence: str) -> None:
    """Print a warning to standard error."""
    click.echo(f"warning: {sentence}", err=True)


class UnreadOutput:
    """Standard output or error whose reader may end, such as `head` or a terminal: the rest is then discarded."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, unless the reader has ended."""
        return self._attempt(lambda: self._stream.write(text)) or 0

    def flush(self) -> None:
        """Flush the stream, unless the reader has ended."""
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], int | None]) -> int | None:
        try:
            return action()
        except OSError as error:
            # EIO: the terminal was closed.
            if not isinstance(error, ConnectionError) and error.errno != errno.EIO:
                raise
            with Path(os.devnull).open("w") as null:
                os.dup2(null.fileno(), self._stream.fileno())
            return None


def _open_closed_streams() -> None:
    """Open the null device in place of closed standard streams, as a daemon has them.

    The number of a closed stream would become that of another file, into which processes of this one would print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115


def _json_value(value: Any) -> Any:
    """Paths as text, NumPy numbers as Python's, and null for NaN and infinity, which JSON cannot express."""
    if isinstance(value, dict):
        return {str(key): _json_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_value(inner) for inner in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def handle_user_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Print a UserError, an error of the user's code, a full disk or a denied access as one sentence and exit with 2.
    Exit with 128 + N on signal N: 130 on Ctrl-C, 143 on SIGTERM, 129 when the terminal was closed.
    """

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> None:
        _open_closed_streams()
        try:
            with handling(interrupt, *TERMINATIONS), own_errors(), on_full_disk("run the command again"):
                command(*args, **kwargs)
        except UserError as error:
            click.echo(f"hedgerow: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            if error.errno not in DENIED or not error.filename:
                raise
            advice = "change its permissions, or choose another place"
            click.echo(f"hedgerow: {error.filename}: {error.strerror}; {advice}", err=True)
            sys.exit(2)
        except KeyboardInterrupt as error:
            click.echo(f"hedgerow: {_interruption(error)}", err=True)
            sys.exit(128 + signal_of(error))

    return wrapped


def _interruption(error: BaseException | None) -> str:
    """Sentence about the interruption, and how to continue the run if there is one."""
    # A second signal may have arrived while the first one was handled.
    while error is not None:
        if isinstance(error, Interrupted):
            return f"interrupted; {error.finished or CONTINUES.format(error.folder)}"
        error = error.__context__
    return "interrupted"


def prints_output(command: Callable[..., CommandOutput]) -> Callable[..., Any]:
    """Print the CommandOutput of a command, and handle errors as `handle_user_errors` does.

    Adds `--json`: standard output is then the document alone, and progress goes to standard error. A reader of the
    output that ends does not end the command.
    """

    @wraps(command)
    def wrapped(*args: Any, as_json: bool, **kwargs: Any) -> None:
        with redirect_stdout(UnreadOutput(sys.stdout)), redirect_stderr(UnreadOutput(sys.stderr)):
            if not as_json:
                command(*args, **kwargs).render()
                return
            with redirect_stdout(sys.stderr):
                output = command(*args, **kwargs)
            output.print_json()

    json_option = click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print the result as one JSON document; progress goes to standard error.",
    )
    return json_option(handle_user_errors(wrapped))
