"""Heartbeats that long-running work sends as it makes progress.

A timer would also send them for a process that hangs.
"""

from collections.abc import Callable

_listener: Callable[[], None] | None = None


def listen(listener: Callable[[], None] | None) -> None:
    """Set the function that `beat` calls in this process; None: no function."""
    global _listener
    _listener = listener


def beat() -> None:
    """Send a heartbeat if this process has a listener. Call it after each piece of work that may take seconds."""
    if _listener is not None:
        _listener()
