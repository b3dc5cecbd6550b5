"""Notices that a machine is about to be taken: what is under way is saved first."""

from typing import Any


class Termination:
    """A handler of SIGTERM: like Ctrl-C, but rounds that are under way are saved first; a second one ends at once."""

    def __init__(self) -> None:
        self.saves = False
        """Whether somebody looks at `came` and saves."""
        self.came = False

    def __call__(self, *_: Any) -> None:
        if self.came or not self.saves:
            raise KeyboardInterrupt
        self.came = True
