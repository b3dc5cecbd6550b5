"""Body of the command `list`. Its answer is cached, since the names of algorithms alone take seconds to import."""

from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from hedgerow.platform.common.table import wide_console
from hedgerow.platform.common.user_cache import cached_answer
from hedgerow.platform.ui.command_output import CommandOutput


def list_choices(kind: str) -> CommandOutput:
    """List every entry of a kind."""
    choices = cached_answer(("list", kind), lambda: _entries(kind))
    return CommandOutput({kind: choices}, lambda: _print_choices(choices))


def _entries(kind: str) -> list[dict[str, Any]]:
    from hedgerow.searchspaces.listing import KINDS

    return [asdict(choice) for choice in KINDS[kind]()]


def _print_choices(choices: list[dict[str, Any]]) -> None:
    """Print names with their descriptions and sources, by family where there are families."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True, style="bold")
    table.add_column("description")
    families = dict.fromkeys(choice.get("family", "") for choice in choices)
    for family in families:
        if family:
            table.add_row("", Text(f"\n{family}", style="underline"))
        for choice in choices:
            if choice.get("family", "") == family:
                table.add_row(Text(choice["name"]), Text(choice["what"]))
                if choice["source"]:
                    table.add_row("", Text(choice["source"], style="dim"))
    wide_console().print(table)
