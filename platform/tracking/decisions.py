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


class BestRound(Logger):
    """Follows a metric over the records of a run, and keeps the checkpoint of the best round (`checkpoints.best`).

    Of equal values, the first is the best; NaN never is.

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
            self.keep_checkpoint(record)

    def keep_checkpoint(self, record: RoundRecord) -> bool:
        if self.metric not in record:
            return False
        value = self._sign * record[self.metric]
        if not value > self._best + self.min_delta:
            self.since += 1
            return False
        self.round, self.since, self._best = record["round"], 0, value
        return True


class EarlyStopping(Logger):
    """Ends a run whose metric no longer improves, by `evaluation.patience`."""

    def __init__(self, patience: Patience, modes: Mapping[str, str]):
        self.best, self.patience = BestRound(patience.metric, patience.min_delta, modes=modes), patience

    def stop(self, record: RoundRecord) -> str | None:
        self.best.keep_checkpoint(record)
        number = self.patience.evaluations
        if self.best.since < number:
            return None
        since = f"since round {self.best.round}" if self.best.round else "from the start"
        evaluations = "1 evaluation" if number == 1 else f"{number} evaluations"
        return f"{self.patience.metric} has not improved for {evaluations}, {since}"


def reaches(record: RoundRecord, target: float, metric: str, mode: str | None) -> bool:
    """Whether a metric has reached its target in a record: an accuracy at or above it, a loss at or below it."""
    value = record.get(metric)
    return value is not None and (value <= target if mode == "min" else value >= target)


def _numbers(logger: Logger, metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that a logger adds, as numbers. Raises ValueError for names that it has not declared."""
    if unknown := next((metric for metric in metrics if metric not in logger.adds), None):
        raise ValueError(f"`adds` does not name {unknown}")
    return {metric: float(value) for metric, value in metrics.items()}


class Decisions:
    """Decisions of a run's loggers after each round: metrics to add, checkpoints to keep, and the end of the run.

    records: rounds before a resume, from which the loggers continue. warn: receives a sentence when a logger fails.
    reason: why a logger ends the run after its last record; None: none does.
    """

    def __init__(
        self,
        experiment: Experiment,
        records: Iterable[RoundRecord] = (),
        warn: Callable[[str], None] = lambda sentence: None,
    ):
        best, patience, modes = experiment.checkpoints.best, experiment.evaluation.patience, experiment.task.modes
        loggers = build_loggers(experiment.tracking.also, decide=True)
        self._followed: dict[str, BestRound] = {}
        if best:
            self._followed["checkpoints.best"] = BestRound(best, modes=modes)
            loggers.append(("checkpoints.best", self._followed["checkpoints.best"]))
        if patience:
            stopping = EarlyStopping(patience, modes)
            self._followed["evaluation.patience.metric"] = stopping.best
            loggers.append(("evaluation.patience", stopping))
        self.reason: str | None = None
        self._loggers = Loggers(loggers, warn)
        self._kept: dict[int, int] = {}
        """Last round whose checkpoint each logger keeps."""
        evaluation = experiment.evaluation
        self._target_metric, self._target_mode = evaluation.target_metric, mode_of(evaluation.target_metric)
        self._open = set(evaluation.targets) if evaluation.stop else None
        """Targets that are not reached; None: they do not end the run."""
        if loggers or self._open:
            for record in records:
                self.take(dict(record))

    def take(self, record: RoundRecord) -> None:
        """Take the record of the next round, and add the loggers' metrics to it. Raises UserError.

        The record of a round before a resume has them, so that the loggers must give the same values again.
        """
        added = {metric for _, logger in self._loggers.loggers for metric in logger.adds}
        measured = {metric: value for metric, value in record.items() if metric not in added}
        for (name, _), metrics in self._loggers.call("add_metrics", measured, read=_numbers):
            for metric, number in metrics.items():
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
        if self._open:
            metric, mode = self._target_metric, self._target_mode
            self._open = {target for target in self._open if not reaches(record, target, metric, mode)}

    @property
    def is_over(self) -> bool:
        """Whether a logger, or the last of the targets, has ended the run."""
        return self.reason is not None or self._open == set()

    @property
    def kept(self) -> set[int]:
        """Rounds whose checkpoints are kept."""
        return set(self._kept.values())

    def check(self, record: RoundRecord) -> None:
        """Raises UserError if the record of the first evaluated round does not have a metric that decides."""
        for key, best in self._followed.items():
            if best.metric not in record and best.round is None and not best.since:
                reported = [name for name in record if mode_of(name) and not name.startswith("train_")]
                raise UserError(f"{key}: this run does not report {best.metric} (reported: {', '.join(reported)})")
