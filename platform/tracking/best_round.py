"""The best round of a run by a metric, and the number of evaluations since then."""

import math
from collections.abc import Iterable, Mapping

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.measures_section import mode_of
from hedgerow.platform.storage.history import RoundRecord


class BestRound:
    """Follows a metric over the records of a run. Of equal values, the first is the best; NaN never is.

    metric: its name. modes: of the task's metrics, by name. min_delta: a better value differs by more than this. round:
    the best one so far; None: there is none. since: number of evaluations after it, or of all if there is none.
    """

    def __init__(
        self,
        metric: str,
        min_delta: float = 0.0,
        records: Iterable[RoundRecord] = (),
        modes: Mapping[str, str] | None = None,
    ):
        self.metric, self.min_delta = metric, min_delta
        self.round: int | None = None
        self.since = 0
        self._sign = -1.0 if mode_of(metric, modes) == "min" else 1.0
        self._best = -math.inf
        for record in records:
            self.note(record)

    def note(self, record: RoundRecord) -> bool:
        """Take the record of the next round; returns whether it is the best so far."""
        if self.metric not in record:
            return False
        value = self._sign * record[self.metric]
        if not value > self._best + self.min_delta:
            self.since += 1
            return False
        self.round, self.since, self._best = record["round"], 0, value
        return True


def reaches(record: RoundRecord, target: float, metric: str, mode: str | None) -> bool:
    """Whether a metric has reached its target in a record: an accuracy at or above it, a loss at or below it."""
    value = record.get(metric)
    return value is not None and (value <= target if mode == "min" else value >= target)


class Selection:
    """Best round of a run by `checkpoints.best`, and its early end by `evaluation.patience` or `evaluation.stop`, over
    its records.
    """

    def __init__(self, experiment: Experiment, records: Iterable[RoundRecord] = ()):
        checkpoints, patience, modes = experiment.checkpoints, experiment.evaluation.patience, experiment.task.modes
        self.best = BestRound(checkpoints.best, modes=modes) if checkpoints.best else None
        self._patience = patience
        self._recent = BestRound(patience.metric, patience.min_delta, modes=modes) if patience else None
        self._followed = [one for one in (self.best, self._recent) if one]
        evaluation = experiment.evaluation
        self._target_metric, self._target_mode = evaluation.target_metric, mode_of(evaluation.target_metric)
        self._open = set(evaluation.targets) if evaluation.stop else None
        """Targets that are not reached; None: they do not end the run."""
        if self._followed or self._open:
            for record in records:
                self.note(record)

    def note(self, record: RoundRecord) -> None:
        """Take the record of the next round."""
        for one in self._followed:
            one.note(record)
        if self._open:
            metric, mode = self._target_metric, self._target_mode
            self._open = {target for target in self._open if not reaches(record, target, metric, mode)}

    def check(self, record: RoundRecord) -> None:
        """Raises UserError if the record of the first evaluated round does not have the metrics."""
        for one in self._followed:
            if one.metric not in record and one.round is None and not one.since:
                reported = [name for name in record if mode_of(name) and not name.startswith("train_")]
                key = "checkpoints.best" if one is self.best else "evaluation.patience.metric"
                raise UserError(f"{key}: this run does not report {one.metric} (reported: {', '.join(reported)})")

    @property
    def is_over(self) -> bool:
        """Whether patience or targets have ended the run."""
        return self._open == set() or self._lost_patience

    @property
    def _lost_patience(self) -> bool:
        return bool(self._recent and self._patience and self._recent.since >= self._patience.evaluations)

    @property
    def reason(self) -> str | None:
        """Sentence about an early end by patience; None if there is none."""
        if not (self._lost_patience and self._recent and self._patience):
            return None
        since = f"since round {self._recent.round}" if self._recent.round else "from the start"
        number = self._patience.evaluations
        evaluations = "1 evaluation" if number == 1 else f"{number} evaluations"
        return f"{self._patience.metric} has not improved for {evaluations}, {since} (evaluation.patience)"
