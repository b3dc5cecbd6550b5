"""Body of the command `list`. Its answer is cached, since the names of algorithms alone take seconds to import."""

from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from hedgerow.platform.common.user_cache import cached_answer
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.platform.ui.wide_console import wide_console

COLUMNS: dict[str, tuple[str, ...]] = {"tables": ("verdict",)}
"""Further columns of a kind: fields of its entries."""


def list_choices(kind: str) -> CommandOutput:
    """List every entry of a kind."""
    choices = cached_answer(("list", kind), lambda: _entries(kind))
    return CommandOutput({kind: choices}, lambda: _print_choices(choices, COLUMNS.get(kind, ())))


def _entries(kind: str) -> list[dict[str, Any]]:
    from hedgerow.searchspaces.listing import KINDS

    return [asdict(choice) for choice in KINDS[kind]()]


def _print_choices(choices: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    """Print names with their descriptions and sources. columns: further fields, each with a column and a heading."""
    table = Table(box=None, pad_edge=False, show_header=bool(columns), padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True, style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    table.add_column("description")
    empty = [""] * len(columns)
    for choice in choices:
        table.add_row(Text(choice["name"]), *(Text(str(choice[column])) for column in columns), Text(choice["what"]))
        if choice["source"]:
            table.add_row("", *empty, Text(choice["source"], style="dim"))
    wide_console().print(table)
