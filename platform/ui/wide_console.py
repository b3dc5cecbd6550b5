"""The console for tables, which are never cut off in a pipe or a file."""

import sys

from rich.console import Console

WIDE = 1000
"""Width of output that does not go to a terminal, in characters."""


def wide_console() -> Console:
    """A console as wide as the terminal; in a pipe or a file wide enough for every column."""
    return Console(width=None if sys.stdout.isatty() else WIDE)
