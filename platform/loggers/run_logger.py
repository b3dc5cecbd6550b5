"""Base class of loggers and of users' callbacks, and the calls that no failure of theirs can disturb."""

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import first_line

Record = dict[str, Any]

SCORED = ("test_", "validation_", "client_")
"""Beginnings of the metrics that an evaluation records."""


@dataclass(frozen=True)
class LoggedRun:
    """A run, as its loggers see it.

    folder: its run folder. settings: the experiment file with every default. history: records of the rounds before a
    resume.
    """

    name: str
    folder: Path
    settings: dict[str, Any]
    history: list[Record]


class RunLogger:
    """Follows a run. Override what you need; arguments of the constructor come from `args` in the experiment file.

    The methods are called in the process that runs the experiment, with copies of the records. A method that fails ends
    its logger, not the run.
    """

    def on_start(self, run: LoggedRun) -> None:
        """Called before the first round, and again when the run is resumed."""

    def on_round(self, record: Record) -> None:
        """Called after each round. record: its metrics by name, and `round`."""

    def on_evaluation(self, record: Record) -> None:
        """Called after each round in which the model was evaluated, following `on_round`."""

    def on_end(self, status: str, summary: dict[str, Any]) -> None:
        """Called at the end. status: finished, interrupted, stopped or failed. summary: {} unless it is finished."""


class Loggers:
    """The loggers of one run.

    loggers: names and loggers; a name may occur twice. warn: receives a sentence when a logger fails; no further method
    of this logger is called.
    """

    def __init__(self, loggers: Iterable[tuple[str, RunLogger]], warn: Callable[[str], None]):
        self.loggers, self.warn = list(loggers), warn

    def start(self, name: str, folder: Path, settings: dict[str, Any], history: Sequence[Record]) -> None:
        """Tell the loggers that a run begins or is resumed."""
        for one in list(self.loggers):
            run = LoggedRun(name, folder.absolute(), deepcopy(settings), deepcopy(list(history)))
            self._call(one, "on_start", run)

    def round(self, record: Record) -> None:
        """Pass on the record of a round."""
        is_scored = any(metric.startswith(SCORED) for metric in record)
        for one in list(self.loggers):
            if self._call(one, "on_round", deepcopy(record)) and is_scored:
                self._call(one, "on_evaluation", deepcopy(record))

    def end(self, status: str, summary: dict[str, Any]) -> None:
        """Tell the loggers that the run has ended."""
        for one in list(self.loggers):
            self._call(one, "on_end", status, deepcopy(summary))

    def _call(self, one: tuple[str, RunLogger], method: str, *arguments: Any) -> bool:
        """Call a method of a logger; returns whether it succeeded."""
        name, logger = one
        try:
            getattr(logger, method)(*arguments)
        except Exception as error:  # a failure of a logger must never end a run
            self.loggers.remove(one)
            self.warn(
                f"tracking.also: {name} failed in {method} ({type(error).__name__}: {first_line(error)}) and was "
                "switched off; the run is not affected"
            )
            return False
        return True
