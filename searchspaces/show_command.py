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
    return CommandOutput(shown["document"], lambda: click.echo(shown["text"] + _loop_note(file), nl=False))


def _loop_note(file: Path) -> str:
    """Comment on why clients of the run in the file's folder were not batched, if there is a run."""
    if not (file.parent / "run.json").exists():
        return ""
    # Imported here, since it takes long.
    from hedgerow.platform.tracking.run_folder import RunFolder

    reason = RunFolder(file.parent).record().get("no_vmap")
    return f"# clients are trained one after the other: {reason}\n" if reason else ""


def _resolved(file: Path, overrides: Sequence[str]) -> dict[str, Any]:
    """Returns a file's values with every default as `document`, and with the origin of each other value as `text`.

    Imports the user's own classes, whose settings have defaults, and calls nothing.
    """
    # Imported here, since it takes seconds.
    from hedgerow.platform.config.composition import annotated
    from hedgerow.platform.config.loader import parse_experiment, read_file

    values, lines = read_file(file, overrides)
    if "search" in values:
        # It imports Ray.
        from hedgerow.searchspaces.spaces.search_file import parse_search

        document = parse_search(values, lines, str(file)).resolved
    else:
        document = parse_experiment(values, lines, str(file)).model_dump(mode="json")
    return {"document": document, "text": annotated(document, values, lines)}
