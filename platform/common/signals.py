"""Ctrl-C and SIGTERM: what is under way is saved first, and the exit code names the signal."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]

SAVING = b"\nhedgerow: saving; Ctrl-C again ends at once\n"


class Termination:
    """A handler of SIGINT and SIGTERM: rounds that are under way are saved first; a second signal ends at once."""

    def __init__(self) -> None:
        self.saves = False
        """Whether `check` is called between rounds; else a signal interrupts whatever is going on."""
        self.came: int | None = None
        """The last signal, if there was one."""

    def __call__(self, number: int, frame: FrameType | None = None) -> None:
        again, self.came = self.came is not None, number
        if again or not self.saves:
            interrupt(number)
        if number == signal.SIGINT and os.isatty(2):
            # Python's own streams are not reentrant.
            os.write(2, SAVING)

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self.came is not None:
            interrupt(self.came)


def interrupt(number: int, frame: FrameType | None = None) -> None:
    """Raise KeyboardInterrupt with the signal's number."""
    raise KeyboardInterrupt(number)


def signal_of(error: BaseException) -> int:
    """The number of the signal of a KeyboardInterrupt: SIGINT where Python itself has raised it."""
    return next((value for value in error.args if isinstance(value, int)), signal.SIGINT)


@contextmanager
def handling(handler: Handler, *numbers: int) -> Iterator[None]:
    """Handle signals meanwhile, in the main thread, which alone can. One that is ignored stays ignored."""
    before = {number: signal.getsignal(number) for number in numbers}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    before = {number: known for number, known in before.items() if known is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, known in before.items():
            # None: of a handler that is not Python's.
            signal.signal(number, signal.SIG_DFL if known is None else known)
