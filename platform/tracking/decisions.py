"""Decisions by the records of a run: best round, early end, and the metrics that loggers add."""

import math
from collections.abc import Callable, Iterable, Mapping

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.logger_section import build_loggers
from hedgerow.platform.config.measures_section import mode_of
from hedgerow.platform.config.model_selection import Patience
from hedgerow.platform.loggers.logger import Logger, Loggers
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


class BestCheckpoint(Logger):
    """Keeps the checkpoint of the best round by `checkpoints.best`."""

    def __init__(self, metric: str, modes: Mapping[str, str]):
        self.best = BestRound(metric, modes=modes)

    def keep_checkpoint(self, record: RoundRecord) -> bool:
        return self.best.note(record)


class EarlyStopping(Logger):
    """Ends a run whose metric no longer improves, by `evaluation.patience`."""

    def __init__(self, patience: Patience, modes: Mapping[str, str]):
        self.best, self.patience = BestRound(patience.metric, patience.min_delta, modes=modes), patience

    def stop(self, record: RoundRecord) -> str | None:
        self.best.note(record)
        number = self.patience.evaluations
        if self.best.since < number:
            return None
        since = f"since round {self.best.round}" if self.best.round else "from the start"
        evaluations = "1 evaluation" if number == 1 else f"{number} evaluations"
        return f"{self.patience.metric} has not improved for {evaluations}, {since}"


class Decisions:
    """Decisions of a run's loggers after each round: metrics to add, checkpoints to keep, and the end of the run.

    records: rounds before a resume, from which the loggers continue. warn: receives a sentence when a logger fails.
    reason: why the run is over after its last record; None: it is not.
    """

    def __init__(
        self,
        experiment: Experiment,
        records: Iterable[RoundRecord] = (),
        warn: Callable[[str], None] = lambda sentence: None,
    ):
        best, patience, modes = experiment.checkpoints.best, experiment.evaluation.patience, experiment.task.modes
        own: dict[str, BestCheckpoint | EarlyStopping] = {}
        if best:
            own["checkpoints.best"] = BestCheckpoint(best, modes)
        if patience:
            own["evaluation.patience"] = EarlyStopping(patience, modes)
        self._own = own
        self.reason: str | None = None
        self._loggers = Loggers([*build_loggers(experiment.tracking.also, decide=True), *own.items()], warn)
        self._kept: dict[int, int] = {}
        """Last round whose checkpoint each logger keeps."""
        if self._loggers.loggers:
            for record in records:
                self.take(dict(record))

    def take(self, record: RoundRecord) -> None:
        """Take the record of the next round, and add the loggers' metrics to it. Raises UserError.

        The record of a round before a resume has them, so that the loggers must give the same values again.
        """
        for (name, _), metrics in self._loggers.call("add_metrics", record):
            for metric, value in metrics.items():
                number = float(value)
                if (known := record.setdefault(metric, number)) != number and not known != known:
                    raise UserError(
                        f"tracking.also: {name} adds {metric} = {number} to round {record['round']}, which has "
                        f"{metric} = {known}; choose another name, or let the value depend on the records alone"
                    )
        for (_, logger), is_kept in self._loggers.call("keep_checkpoint", record):
            if is_kept:
                self._kept[id(logger)] = record["round"]
        reasons = [f"{reason} ({name})" for (name, _), reason in self._loggers.call("stop", record) if reason]
        self.reason = reasons[0] if reasons else None

    @property
    def kept(self) -> set[int]:
        """Rounds whose checkpoints are kept."""
        return set(self._kept.values())

    def check(self, record: RoundRecord) -> None:
        """Raises UserError if the record of the first evaluated round does not have a metric that decides."""
        for name, one in self._own.items():
            best = one.best
            if best.metric not in record and best.round is None and not best.since:
                reported = [name for name in record if mode_of(name) and not name.startswith("train_")]
                key = name if name == "checkpoints.best" else f"{name}.metric"
                raise UserError(f"{key}: this run does not report {best.metric} (reported: {', '.join(reported)})")
