"""Elimination of experts on a stream, with a price: Hedge keeps a bound on its regret against the stopped ones."""

from dataclasses import dataclass, field

import numpy as np

FIRST_ROUND = 10
"""Round after which an expert may be stopped: in a short run, one bad round would stop it before."""


@dataclass
class Elimination:
    """After round t, stops the experts whose cumulative loss is at least comeback * (T - t) above the leader's.

    A stopped expert could have become the best only by an average advantage of more than `comeback` per round over the
    leaders of the remaining rounds. Whatever the losses in [0, 1] that it would have had, the regret against it is at
    most the bound of the weights plus (1 - comeback) * (T - t), and at most the bound itself unless its advantage had
    been larger. Losses without a range are measured by their largest spread in a round so far; the bounds then hold if
    no later spread is larger.

    comeback: in [0, 1]; with 1, no stopped expert could have become the best. rounds: T, the number of rounds with a
    loss. in_range: whether the losses are in [0, 1].
    """

    comeback: float
    rounds: int
    in_range: bool = True
    stopped: dict[int, int] = field(default_factory=dict)
    """Round after which each stopped expert was stopped."""
    price: float = 0.0
    """Largest addition to the bound against a stopped expert, if its advantage had been larger."""

    def after(self, round: int, losses: np.ndarray, running: np.ndarray, spread: float) -> list[int]:
        """Stop experts after a round; returns them.

        losses (experts,): cumulative. running (experts,): mask of the experts that may be stopped. spread: the largest
        difference of two losses of a round so far.
        """
        left, scale = self.rounds - round, 1.0 if self.in_range else spread
        if round < FIRST_ROUND or left <= 0 or not running.any():
            return []
        leader = int(np.where(running, losses, np.inf).argmin())
        behind = running & (losses - losses[leader] >= self.comeback * scale * left)
        behind[leader] = False
        chosen = [int(expert) for expert in np.flatnonzero(behind)]
        self.stopped |= dict.fromkeys(chosen, round)
        if chosen:
            self.price = max(self.price, (1 - self.comeback) * scale * left)
        return chosen
