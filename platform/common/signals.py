"""Handling of Ctrl-C, SIGTERM and SIGHUP: work in progress is saved first, and the exit code identifies the signal."""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], None]

HANGUP = getattr(signal, "SIGHUP", None)
"""Signal of a terminal that was closed; None on Windows."""

TERMINATIONS = [signal.SIGTERM] if HANGUP is None else [signal.SIGTERM, HANGUP]
"""Signals by which a system ends a process."""

SAVING = b"\nhedgerow: saving; Ctrl-C again ends at once\n"

REPEAT = 5.0
"""Seconds after which a second signal that was not handled is sent again."""


class Termination:
    """Handler of SIGINT, SIGTERM and SIGHUP: rounds in progress are saved first; a second signal ends the process at
    once, except SIGHUP, which a terminal and its shell both send.
    """

    def __init__(self) -> None:
        self.saves = False
        """Whether `check` is called between rounds; otherwise a signal interrupts immediately."""
        self.came: int | None = None
        """Last signal received; None if there was none."""
        self.is_handled = False
        """Whether the KeyboardInterrupt of a signal was caught."""

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        again, self.came = self.came is not None and number != HANGUP, number
        if again:
            self._repeat(number)
        if again or not self.saves:
            interrupt(number)
        if number == signal.SIGINT and os.isatty(2):
            # Python's own streams are not reentrant.
            os.write(2, SAVING)

    def _repeat(self, number: int) -> None:
        """Send the signal again after a while, unless it was handled: an exception that is raised in an import with a
        bare `except` is lost.
        """

        def send() -> None:
            if not self.is_handled:
                os.kill(os.getpid(), number)

        timer = threading.Timer(REPEAT, send)
        timer.daemon = True
        timer.start()

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal was received."""
        if self.came is not None:
            interrupt(self.came)


def interrupt(number: int, frame: FrameType | None = None) -> None:
    """Raise KeyboardInterrupt with the number of the signal."""
    raise KeyboardInterrupt(number)


def signal_of(error: BaseException) -> int:
    """Signal number of a KeyboardInterrupt; SIGINT if Python itself raised it."""
    return next((value for value in error.args if isinstance(value, int)), signal.SIGINT)


def _raise_again(hook: Callable[[Any], Any], unraisable: Any) -> None:
    """Send the signal of a KeyboardInterrupt that Python ignores again, once the code that ignores it has returned."""
    if not isinstance(unraisable.exc_value, KeyboardInterrupt):
        hook(unraisable)
        return
    number = signal_of(unraisable.exc_value)

    def send() -> None:
        time.sleep(0.01)
        if callable(signal.getsignal(number)):
            os.kill(os.getpid(), number)

    # Not `threading.Thread`: the interrupted code may hold its lock.
    _thread.start_new_thread(send, ())


@contextmanager
def handling(handler: Handler, *numbers: int) -> Iterator[None]:
    """Context manager that handles signals. No effect outside the main thread; ignored signals stay ignored.

    A KeyboardInterrupt that is raised where Python ignores exceptions, as in a finaliser or the callback of a weak
    reference, is raised again.
    """
    before = {number: signal.getsignal(number) for number in numbers}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    before = {number: old_handler for number, old_handler in before.items() if old_handler is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    hook = sys.unraisablehook
    if before:
        sys.unraisablehook = partial(_raise_again, hook)
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, old_handler in before.items():
            # None: the old handler was not installed from Python.
            signal.signal(number, signal.SIG_DFL if old_handler is None else old_handler)
