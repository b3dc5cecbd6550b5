"""The model that a tuner deploys while it searches, and its test score over time."""

import math

from hedgerow.searchspaces.hedge.scheduler import HedgeScheduler
from hedgerow.searchspaces.replay.replay_controller import Curve


class OnlineScore:
    """Mean over client rounds of the test accuracy of a tuner's current choice, from its first report on.

    The choice is Hedge's leader, or else the trial with the best metric in its latest evaluated round. It holds until
    the next report. On a stream it is scored on the task after its latest round, which the choice did not know.

    metric, mode: objective. hedge: scheduler whose leader is deployed; None: another kind of search.
    """

    def __init__(self, metric: str, mode: str, hedge: HedgeScheduler | None, is_stream: bool):
        self.metric, self.mode, self.hedge, self.is_stream = metric, mode, hedge, is_stream
        self.changes: list[tuple[float, int, int]] = []
        """(client rounds, position of the trial, its round) of each change of the deployed model."""
        self._values: dict[int, float] = {}
        self._accuracy: float | None = None
        self._total = self._time = self._since = 0.0

    def look(self, spent: float, position: int, curves: list[Curve], reached: list[int]) -> None:
        """Update after a report of the trial at `position`. curves, reached: curve and latest round of each trial."""
        self._pass(spent)
        for record in reversed(curves[position][: reached[position]]):
            if self.metric in record:
                value = record[self.metric] if math.isfinite(record[self.metric]) else math.nan
                self._values[position] = -value if self.mode == "max" else value
                break
        chosen = self._choice(reached)
        if chosen is None:
            return
        if not self.changes or self.changes[-1][1:] != (chosen, reached[chosen]):
            self.changes.append((spent, chosen, reached[chosen]))
        after = reached[chosen]
        scored = curves[chosen][after : after + 1] if self.is_stream else reversed(curves[chosen][:after])
        accuracy = next((record["test_accuracy"] for record in scored if "test_accuracy" in record), None)
        # A model that has diverged predicts nothing.
        self._accuracy = accuracy if accuracy is None or math.isfinite(accuracy) else 0.0

    def score(self, until: float) -> float | None:
        """Mean up to a number of client rounds; None if no test accuracy was known."""
        self._pass(until)
        return self._total / self._time if self._time else self._accuracy

    def _pass(self, spent: float) -> None:
        if self._accuracy is not None:
            self._total += self._accuracy * (spent - self._since)
            self._time += spent - self._since
        self._since = spent

    def _choice(self, reached: list[int]) -> int | None:
        if self.hedge is not None:
            self.hedge.rounds.settle()
            leader = self.hedge.rounds.hedge.leader
            return leader if reached[leader] else None
        finite = {position: value for position, value in self._values.items() if not math.isnan(value)}
        return min(finite, key=lambda position: finite[position]) if finite else None
