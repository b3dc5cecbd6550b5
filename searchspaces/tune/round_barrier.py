"""Barrier of lock-step rounds: trials on one machine see in a shared file that all others have run a round.

A trial may then begin its next round before its report, and reports several rounds together.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PAUSES = 0.0001, 0.01
"""Shortest and longest time between two looks at the other trials, in seconds. It grows with the time waited."""


class RoundBarrier:
    """Progress of all experts in a file of one number per expert, which the processes of the trials map into memory.

    The number is twice the last round that the expert has run, plus one if its trial reports after that round; one
    number, so that both are written in one step. All trials begin the next round, or all report, because each decides
    from the same numbers: none changes before all trials have passed the round, or have reported it.

    file: created by `create`. experts: numbers of the trial's own experts.
    """

    FINISHED = 2**62
    """Number of an expert for which no trial waits."""

    def __init__(self, file: Path, experts: Sequence[int]):
        self._numbers = np.memmap(file, dtype=np.int64, mode="r+")
        self._own = list(experts)

    @staticmethod
    def create(file: Path, experts: int) -> None:
        """Write the file of a search that begins, with no rounds for each expert."""
        np.zeros(experts, dtype=np.int64).tofile(file)

    def passes(self, round: int, until: float) -> bool:
        """Record that the own experts have run a round; returns whether to begin the next one before the report.

        Waits for the other trials. until: time (`time.monotonic`) at which the trial reports in any case.
        """
        begun = time.monotonic()
        if begun >= until:
            self.reports(round)
            return False
        self._set(2 * round)
        while (self._numbers >> 1).min() < round:
            now = time.monotonic()
            if now >= until:
                self.reports(round)
                return False
            time.sleep(min(max((now - begun) / 10, PAUSES[0]), PAUSES[1]))
        return not (self._numbers == 2 * round + 1).any()

    def reports(self, round: int) -> None:
        """Record that the trial reports after a round, so that the others report, too."""
        self._set(2 * round + 1)

    def leave(self) -> None:
        """Record that no trial is to wait for the own experts."""
        self._set(self.FINISHED)

    def _set(self, number: int) -> None:
        self._numbers[self._own] = number
