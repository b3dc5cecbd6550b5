"""Notices that a machine is about to be taken: what is under way is saved first."""

from typing import Any


class Termination:
    """A handler of SIGTERM: like Ctrl-C, but rounds that are under way are saved first; a second one ends at once."""

    def __init__(self) -> None:
        self.saves = False
        """Whether somebody looks at `came` between rounds; else it interrupts whatever is going on."""
        self.came = False

    def __call__(self, *_: Any) -> None:
        again, self.came = self.came, True
        if again or not self.saves:
            raise KeyboardInterrupt
