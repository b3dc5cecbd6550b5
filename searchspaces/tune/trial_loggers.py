"""The loggers of `tracking.also` for each trial of a search."""

from collections.abc import Callable
from pathlib import Path

from hedgerow.platform.config.logger_section import build_loggers
from hedgerow.platform.loggers.logger import LoggedRun, Loggers
from hedgerow.platform.storage.checkpoint import latest_checkpoint, round_of
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.searchspaces.results.trials import expert_folder
from hedgerow.searchspaces.spaces.search_file import SearchSpec


class TrialLoggers:
    """Passes the records of trials to loggers of their own, which are created with the first record of a trial.

    folder: run folder of the search. warn: see Loggers.
    """

    def __init__(self, folder: Path, spec: SearchSpec, warn: Callable[[str], None]):
        self.folder, self.spec, self.warn = folder, spec, warn
        self.trials: dict[int, Loggers] = {}
        self._history: dict[int, int] = {}
        """Last round of each trial before a resume. The resumed trial reports its rounds from the first one on."""
        for trial in map(RunFolder, folder.glob("experts/*") if spec.experiment.tracking.also else ()):
            if latest := latest_checkpoint(trial.checkpoints):
                self._history[int(trial.name)] = round_of(latest[0])

    def round(self, index: int, record: RoundRecord) -> None:
        """Pass on the record of a round of a trial."""
        sections = self.spec.experiment.tracking.also
        if not sections:
            return
        own = {key: value for key, value in record.items() if key != "expert"}
        if index not in self.trials:
            folder = expert_folder(self.folder, index)
            last = self._history.get(index, 0)
            before = [earlier for earlier in RunLog(folder.metrics).read() if earlier["round"] <= last]
            self.trials[index] = Loggers(build_loggers(sections), self.warn)
            settings = self.spec.trial(folder.record()["overrides"]).model_dump(mode="json")
            run = LoggedRun(f"{self.folder.name}/{folder.name}", folder.path.absolute(), settings, before)
            self.trials[index].call("start", run)
        if record["round"] > self._history.get(index, 0):
            self.trials[index].call("log", own)

    def end(self, index: int, status: str) -> None:
        """Tell the loggers of a trial that it has ended."""
        if index in self.trials:
            summary = expert_folder(self.folder, index).record().get("summary", {})
            self.trials.pop(index).call("end", status, summary)
            self._history.pop(index, None)
