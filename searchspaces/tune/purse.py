"""The budget of a search as its trials see it, in their own processes."""

import time
from dataclasses import dataclass
from typing import Any

import ray

IS_SPENT = "budget_is_spent"
"""Entry of a trial's report: whether the trial begins no other round, because the budget is spent."""


class ClientRounds:
    """Client rounds that all trials of a search have spent; an actor, because trials run in other processes."""

    def __init__(self, spent: int, limit: int):
        self.spent, self.limit = spent, limit

    def add(self, client_rounds: int) -> bool:
        """Add client rounds; returns whether the budget is spent."""
        self.spent += client_rounds
        return self.spent >= self.limit

    def total(self) -> int:
        """Returns the client rounds so far."""
        return self.spent


@dataclass(frozen=True)
class Purse:
    """The budget as trials see it.

    until: time (`time.time`) at which it is spent. counter: actor of `ClientRounds`; None: the unit is seconds.
    """

    until: float
    counter: Any

    def is_spent(self, client_rounds: int = 0) -> bool:
        """Pay for a round of a trial; returns whether the budget is spent."""
        if self.counter is not None:
            return ray.get(self.counter.add.remote(client_rounds))
        return time.time() >= self.until
