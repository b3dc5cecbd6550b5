"""Body of the command `show`. Its answer is cached where it depends on nothing but the file."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hedgerow.platform.common.user_cache import cached_answer
from hedgerow.platform.ui.command_output import CommandOutput

COMMENT = re.compile(r"^\s*#.*$", re.MULTILINE)
OUTSIDE = re.compile(r"[$\\]|\b(base|run)\b|(?<![\w.])[A-Za-z_]\w*\.[A-Za-z_](?![\w.]*\s*[:=])")
"""Text that may refer to something outside the file: an environment variable, another file, the run of a teacher, or
the dotted path of a class. Dotted keys, such as `algorithm.lr:`, refer to nothing."""


def show_file(file: Path, overrides: Sequence[str]) -> CommandOutput:
    """Show an experiment or a search with every default filled in, and where each other value comes from."""
    contents = ""
    with suppress(OSError, ValueError):
        contents = file.read_text(encoding="utf-8")
    if not contents or OUTSIDE.search("\n".join([COMMENT.sub("", contents), *overrides])):
        shown = _resolved(file, overrides)
    else:
        question = ("show", str(Path.cwd()), str(file), *overrides)
        shown = cached_answer(question, lambda: _resolved(file, overrides), contents)
    return CommandOutput(shown["document"], lambda: click.echo(shown["text"], nl=False))


def _resolved(file: Path, overrides: Sequence[str]) -> dict[str, Any]:
    # Imported here, since it takes seconds.
    from hedgerow.searchspaces.resolved_file import resolved

    return resolved(file, overrides)
