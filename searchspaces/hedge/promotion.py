"""Promotion of experts on a fixed data set: which expert trains next, and up to which of its reports.

An expert that rests keeps its model, so its score is known without any work. Time is work here: a block is the work of
one expert up to its next rung.
"""

import math
from itertools import count
from typing import NamedTuple

import numpy as np

from hedgerow.searchspaces.hedge.weights import FixedShare
from hedgerow.searchspaces.spaces.smoothing import smoothed


class WorkBlock(NamedTuple):
    """Work that is given to an expert: it trains until it has made a number of reports."""

    expert: int
    until: int


class Promotion:
    """Gives blocks of work to experts, from the reports so far alone.

    The rungs are `grace`, `reduction` times as many reports, and so on, up to the last report. Whenever a slot is free:

    1. From the highest rung down: where the number of experts that have passed a rung is at least `reduction` times
       that of those that went on, plus one more, the best of the others goes on to the next rung.
    2. Else the next expert without a block trains up to the first rung.
    3. Else the best of all resting experts goes on to its next rung. With all the work, every expert makes all reports.

    The score of an expert is the mean of the last ceil(smooth * n) of its n losses. Ties are broken by `tie` of its
    last report, then by the mean of all its losses, then by its number.

    After each block, Fixed-Share updates the weights with the scores of all experts that have reported; the others
    sleep. The bound on the regret is against experts as they were scheduled: the loss of an expert is that of the model
    that it had, and an expert that was given little work might have been better with more.

    experts: number of experts. reports: of each expert. gamma, share: of FixedShare.
    """

    def __init__(
        self,
        experts: int,
        reports: int,
        grace: int = 2,
        reduction: int = 3,
        smooth: float = 0.5,
        gamma: float = 0.1,
        share: float = 0.01,
    ):
        self.reduction, self.smooth, self.reports = reduction, smooth, reports
        steps = (grace * reduction**k for k in count())
        self.rungs: list[int] = []
        while not self.rungs or self.rungs[-1] < reports:
            self.rungs.append(min(reports, next(steps)))
        self.losses: list[list[float]] = [[] for _ in range(experts)]
        """Losses of each expert, in [0, 1]."""
        self.running: dict[int, int] = {}
        """Number of reports at which each expert that trains comes to rest."""
        self.ended: set[int] = set()
        """Experts that get no more work."""
        self.failed: set[int] = set()
        self.weights = FixedShare(experts, gamma, share)
        self._ties = [math.inf] * experts

    def decide(self) -> WorkBlock | None:
        """Returns the next block; None if no resting expert has work left."""
        resting = [i for i in range(len(self.losses)) if i not in self.running and i not in self.ended]
        for rung, after in zip(self.rungs[-2::-1], self.rungs[:0:-1], strict=True):
            passed = [i for i, losses in enumerate(self.losses) if len(losses) >= rung]
            stayed = [i for i in passed if max(len(self.losses[i]), self.running.get(i, 0)) == rung]
            candidates = [i for i in stayed if i in resting]
            if candidates and len(passed) // self.reduction > len(passed) - len(stayed):
                return WorkBlock(self._best(candidates), after)
        fresh = [i for i in resting if not self.losses[i]]
        if fresh:
            return WorkBlock(fresh[0], self.rungs[0])
        left = [i for i in resting if len(self.losses[i]) < self.reports]
        return self.next_block(self._best(left)) if left else None

    def next_block(self, expert: int) -> WorkBlock:
        """Returns the work of an expert up to its next rung."""
        done = len(self.losses[expert])
        return WorkBlock(expert, next((rung for rung in self.rungs if rung > done), self.reports))

    def start(self, block: WorkBlock) -> None:
        """Note that an expert trains."""
        self.running[block.expert] = block.until

    def report(self, expert: int, loss: float, tie: float = math.inf) -> float | None:
        """Note a loss of an expert, which trains; returns the mean score under the weights if its block ends.

        tie: orders experts with equal scores. A loss that is not finite counts as 1.
        """
        self.losses[expert].append(loss if math.isfinite(loss) else 1.0)
        self._ties[expert] = tie if math.isfinite(tie) else math.inf
        if len(self.losses[expert]) < self.running[expert]:
            return None
        del self.running[expert]
        scores = [self.score(i) if losses else 1.0 for i, losses in enumerate(self.losses)]
        return self.weights.update(scores, self.known)

    def end(self, expert: int, failed: bool) -> None:
        """Give an expert no more work and, if it failed, no weight."""
        self.running.pop(expert, None)
        self.ended.add(expert)
        if failed:
            self.failed.add(expert)

    def score(self, expert: int) -> float:
        """Smoothed loss of an expert that has reported."""
        return smoothed(self.losses[expert], self.smooth)

    @property
    def known(self) -> np.ndarray:
        """Mask of the experts that have reported and have not failed."""
        return np.array([bool(losses) and i not in self.failed for i, losses in enumerate(self.losses)])

    @property
    def deployed_weights(self) -> np.ndarray:
        """Weights (experts,) among the experts that have reported; there must be one."""
        return self.weights.probs_among(self.known)

    @property
    def best(self) -> int | None:
        """Expert with the best score; None if none has reported."""
        known = np.flatnonzero(self.known)
        return self._best([int(i) for i in known]) if len(known) else None

    def _best(self, experts: list[int]) -> int:
        return min(experts, key=lambda i: (self.score(i), self._ties[i], smoothed(self.losses[i], 1.0), i))
