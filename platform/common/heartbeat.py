"""Signs of life that long work gives from within, as it makes progress.

A timer would give them for a process that hangs, too.
"""

from collections.abc import Callable

_listener: Callable[[], None] | None = None


def listen(listener: Callable[[], None] | None) -> None:
    """Set the function of this process that `beat` calls; None: no function."""
    global _listener
    _listener = listener


def beat() -> None:
    """Give a sign of life, where this process has to: after each piece of work that may take seconds."""
    if _listener is not None:
        _listener()
