"""Base class of all that follows a run: MLflow, TensorBoard, early stopping, and users' own loggers."""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import first_line

Record = dict[str, Any]


@dataclass(frozen=True)
class LoggedRun:
    """A run, as its loggers see it.

    folder: its run folder, absolute. settings: the experiment file with every default. history: records of the rounds
    before a resume.
    """

    name: str
    folder: Path
    settings: dict[str, Any]
    history: list[Record]


class Logger:
    """Follows a run. Override what you need; arguments of the constructor come from `args` in the experiment file.

    Hooks receive copies. A hook that fails ends its logger, not the run. `start`, `log` and `end` write: they are
    called in the process that runs the experiment. `add_metrics`, `keep_checkpoint` and `stop` decide: they are called
    where the coordinator of the run is, on an instance of their own, in this order after each round. They depend on the
    records alone: a resumed run calls them again with the records before, and continues with the same decisions.
    """

    adds: tuple[str, ...] = ()
    """Names of the metrics that `add_metrics` returns. The records that it receives do not have them, of any logger."""

    def start(self, run: LoggedRun) -> None:
        """Called before the first round, and again when the run is resumed."""

    def log(self, record: Record) -> None:
        """Called after each round. record: its metrics by name, and `round`."""

    def end(self, status: str, summary: dict[str, Any]) -> None:
        """Called at the end. status: finished, interrupted, stopped or failed. summary: {} unless it is finished."""

    def add_metrics(self, record: Record) -> Mapping[str, float]:
        """Returns metrics that the record of the round gets in addition."""
        return {}

    def keep_checkpoint(self, record: Record) -> bool:
        """Returns whether a checkpoint of the round is kept until the next one that this logger keeps."""
        return False

    def stop(self, record: Record) -> str | None:
        """Returns the reason why the run ends after the round; None: it continues."""
        return None


HOOKS = [name for name, value in vars(Logger).items() if callable(value) and not name.startswith("_")]
DECIDING = ("add_metrics", "keep_checkpoint", "stop")
"""Hooks that are called by the coordinator."""


def overrides(kind: type[Logger], hooks: Iterable[str]) -> bool:
    """Whether a class of loggers has one of these hooks of its own."""
    return any(getattr(kind, hook) is not getattr(Logger, hook) for hook in hooks)


class Loggers:
    """The loggers of one run, with their names; a name may occur twice.

    warn: receives a sentence when a logger fails; it is not called again.
    """

    def __init__(self, loggers: Iterable[tuple[str, Logger]], warn: Callable[[str], None]):
        self.loggers, self.warn = list(loggers), warn
        self._ended: list[Logger] = []

    def call(
        self, hook: str, *arguments: Any, read: Callable[[Logger, Any], Any] = lambda logger, answer: answer
    ) -> list[tuple[tuple[str, Logger], Any]]:
        """Call a hook of the loggers that have it, with copies of the arguments; returns their answers.

        read: takes a logger and its answer, and returns the answer as it is used; if it fails, the logger has failed.
        """
        answers = []
        for one in [one for one in self.loggers if overrides(type(one[1]), [hook])]:
            name, logger = one
            try:
                answers.append((one, read(logger, getattr(logger, hook)(*deepcopy(arguments)))))
            except Exception as error:  # a failure of a logger must never end a run
                self.loggers = [other for other in self.loggers if other is not one]
                self.warn(
                    f"the logger {name} failed in {hook} ({type(error).__name__}: {first_line(error)}) and was "
                    "switched off; the run is not affected"
                )
        return answers

    def end(self, status: str, summary: dict[str, Any], loggers: Iterable[tuple[str, Logger]] | None = None) -> None:
        """Call `end` of all loggers, or of some of them, at most once each."""
        for one in list(self.loggers if loggers is None else loggers):
            if not any(one[1] is ended for ended in self._ended):
                self._ended.append(one[1])
                Loggers([one], self.warn).call("end", status, summary)
