"""Reference page of the commands, from their help."""

from collections.abc import Iterator

import click
from settings_pages import paragraphs

from hedgerow.cli import main


def _every(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    """All commands; commands of groups are named by two words."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _every(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def commands(_: str = "") -> str:
    """Every command with its options and its example."""
    text = ""
    for name, command in _every(main):
        context = click.Context(command, info_name=f"hedgerow {name}")
        about, _, example = (command.help or "").partition("Example: ")
        usage = " ".join(command.collect_usage_pieces(context))
        text += f"## `hedgerow {name}`\n\n```text\nhedgerow {name} {usage}\n```\n\n{paragraphs(about.strip())}\n\n"
        if example:
            text += f"```bash\n{' '.join(example.split())}\n```\n\n"
        options = [one for one in command.params if isinstance(one, click.Option)]
        rows = [record for one in options if (record := one.get_help_record(context))]
        if rows:
            text += "| option | |\n|---|---|\n"
            text += "".join(f"| `{option}` | {' '.join(paragraphs(what).split())} |\n" for option, what in rows) + "\n"
    return text
