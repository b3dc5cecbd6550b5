"""A run as the files in its folder record it, for comparisons and reports. Reading needs neither data nor Ray."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.config.yaml_reader import parse_yaml
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import summarise
from hedgerow.platform.tracking.tracker import RunLog


@dataclass(frozen=True)
class Run:
    """A run: its record (run.json), its resolved file as plain values, and its rounds.

    heading: the name of its method in a table, or the kind of a search that is treated as one run. search: the folder
    of the search, if the run is a trial.
    """

    folder: RunFolder
    record: dict[str, Any]
    values: dict[str, Any]
    records: list[RoundRecord]
    heading: str = ""
    search: RunFolder | None = None

    @classmethod
    def read(cls, folder: RunFolder, heading: str = "", search: RunFolder | None = None) -> Self:
        """Read a run. Imports no module that its file names. Raises UserError."""
        try:
            # The file is resolved: it has every key, and the user's own algorithm need not be importable here.
            values, _ = parse_yaml(folder.experiment.read_text(encoding="utf-8"), lambda n: f"{folder.experiment}:{n}")
            status = folder.status
            record = folder.record() | {"status": status}
            return cls(folder, record, dict(values), RunLog(folder.metrics).read(), heading, search)
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{folder.experiment} cannot be read ({first_line(error)})") from None

    @property
    def name(self) -> str:
        return str(self.values["name"])

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    @property
    def target_metric(self) -> str:
        return self.values["evaluation"]["target_metric"]

    @property
    def targets(self) -> list[float]:
        return self.values["evaluation"]["targets"]

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Result of `summary.summarise` for the rounds so far."""
        return summarise(self.records, self.targets, self.target_metric, self.modes)

    @property
    def modes(self) -> dict[str, str]:
        """Whether each metric that the file names is to be minimised ("min") or maximised ("max"), by name."""
        return {
            choice["name"].rpartition(".")[2]: choice["mode"] for choice in self.values["task"].get("metrics") or []
        }

    @property
    def is_finished(self) -> bool:
        """Whether the run has finished: all rounds, or its targets were reached."""
        return self.record.get("status") == "finished"

    @property
    def is_stream(self) -> bool:
        """Whether the rounds are the tasks of a stream."""
        return "ctm" in self.records[0]
