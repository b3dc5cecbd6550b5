"""Journal of what Tune reports to a scheduler and a searcher, from which an interrupted search continues."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.spaces.space import Overrides

JOURNAL = "reports.jsonl"
"""Name of the journal in the folder of a search."""

REPORTS = "add", "report", "fail"
"""Events that an interruption does not repeat: a trial starts again after it."""


class ReportJournal:
    """Events of a search in the order in which Tune's controller passed them on, one per line of a file.

    A scheduler that is given the same events again, in the same order, is in the same state. Raises UserError when the
    file is damaged.

    Entries of a line: number: its position, from 0. event: a trial was added, started to train, reported, or failed
    permanently; or the scheduler chose the next trial. overrides: proposal of a searcher. result: metrics of a report,
    with its round. done: whether the trial has run all its rounds. decision: answer of the scheduler. ends: other
    trials that the scheduler ended. copy_of: copy that the trial continues from.
    """

    def __init__(self, file: Path):
        self._log = RunLog(file)
        self.events: list[dict[str, Any]] = []
        self.reports = 0
        """Number of events of the kinds in REPORTS."""
        self.proposals: list[Overrides] = []
        self.rounds: dict[int, int] = {}
        """Round of each trial's last report; after a copy, the round of the copy."""
        self.ends: dict[int, str] = {}
        """Status of each trial that has ended: finished, stopped or failed."""
        self.origins: dict[int, list[dict[str, Any]]] = {}
        """For each trial that continues from a copy: see `packing.LINEAGE`."""
        self.copies: dict[int, int] = {}
        """Number of copies that each trial has continued from."""
        for position, event in enumerate(self._log.read()):
            if event["number"] != position:
                raise UserError(
                    f"{file} is damaged (event {position} is missing), so the decisions after it cannot be repeated; "
                    "restore it from a copy, or run the search again"
                )
            self._note(event)
        if self.events:
            # Without a last line that a crash cut off.
            self._log.replace(self.events)

    def append(self, event: Literal["add", "start", "report", "fail", "choose"], **values: Any) -> None:
        """Record the next event."""
        entry = {
            "number": len(self.events),
            "event": event,
            **{key: value for key, value in values.items() if value not in (None, [])},
        }
        self._log.append(entry)
        self._note(entry)

    def _note(self, event: Mapping[str, Any]) -> None:
        self.events.append(dict(event))
        self.reports += event["event"] in REPORTS
        trial, kind = event.get("trial", -1), event["event"]
        if kind == "add" and "overrides" in event:
            self.proposals.append(event["overrides"])
        elif kind == "report":
            self.rounds[trial] = int(event["result"]["round"])
            if event["decision"] == "STOP":
                self.ends[trial] = "finished" if event.get("done") else "stopped"
            if copy := event.get("copy_of"):
                self.rounds[trial] = copy["round"]
                self.copies[trial] = self.copies.get(trial, 0) + 1
                self.origins[trial] = [*self.origins.get(copy["donor"], []), copy]
        elif kind == "fail":
            self.ends[trial] = "failed"
        self.ends |= dict.fromkeys(event.get("ends", []), "stopped")
