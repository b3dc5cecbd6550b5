"""Finished runs and run folders, for use in Python and in notebooks."""

from base64 import b64encode
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Self

from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import load_experiment
from hedgerow.platform.runs.own_data import same_data
from hedgerow.platform.runtime.factory import Data, build_algorithms
from hedgerow.platform.storage.checkpoint import checkpoints, read_checkpoint
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import summary_cells
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import summarise
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.platform.ui.plots import curves

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class FinishedRun:
    """A finished run; or, read from its folder, a run with its rounds so far.

    records: one per round. summary: result of `summary.summarise`, empty before the first round. model: parameters, if
    they are in memory. warning: a sentence about failures that did not stop the run.
    """

    folder: RunFolder
    experiment: Experiment
    records: list[RoundRecord]
    summary: dict[str, Any]
    model: Tree | None = None
    warning: str | None = None
    data: Data | None = field(default=None, repr=False, compare=False)
    """Data set and partition, if the run was given its own, for `parameters`."""

    @classmethod
    def read(cls, folder: RunFolder, data: Data | None = None) -> Self:
        """Read a run from its folder. data: data set and partition, if the run was given its own."""
        experiment, records = load_experiment(folder.experiment), RunLog(folder.metrics).read()
        evaluation = experiment.evaluation
        record = folder.record()
        summary = record.get("summary")
        if summary is None and records:
            summary = summarise(records, evaluation.targets, evaluation.target_metric, experiment.task.modes)
        warning = "; ".join(record.get("diverged", [])) or None
        return cls(folder, experiment, records, summary or {}, warning=warning, data=data)

    @property
    def status(self) -> str:
        """Status of the run: finished, running, interrupted, failed or stopped."""
        return self.folder.record()["status"]

    @property
    def plans(self) -> dict[str, dict[str, Any]]:
        """Execution plan of each step. With these `engine.plans`, another run reproduces the numbers bit for bit."""
        return self.folder.record().get("plans", {})

    @cached_property
    def frame(self) -> "DataFrame":
        """A pandas frame with a row for each round and a column for each metric."""
        return rounds_frame(self.records)

    @cached_property
    def parameters(self) -> Tree:
        """Trained parameters of the model as arrays, without frozen ones.

        For a run that was read from its folder, this needs its data. Raises UserError.
        """
        if self.model is not None:
            return self.model
        data = same_data(self.folder, self.experiment, self.data, fix="load")
        return last_parameters(self.experiment, self.folder, data)

    def figure(self, by: str = "round") -> Any:
        """Curves as a matplotlib figure. by: "round", or "traffic" for transmitted parameters."""
        return curves({self.experiment.name: self.records}, by, self.experiment.evaluation.accuracies)

    def __repr__(self) -> str:
        return f"<run {self.folder.name}: {self.status}, {len(self.records)} of {self.experiment.rounds} rounds>"

    def _repr_html_(self) -> str:
        rows = [summary_cells(self.summary)] if self.summary else []
        return page(self.folder, self.status, self.warning, rows, self._repr_png_())

    def _repr_png_(self) -> bytes | None:
        return self.figure()._repr_png_() if self.records else None


def rounds_frame(records: list[RoundRecord]) -> "DataFrame":
    """Records as a pandas frame, indexed by round."""
    # Imported here: pandas takes a second to import.
    from pandas import DataFrame

    return DataFrame(records).set_index("round") if records else DataFrame()


def page(folder: RunFolder, status: str, warning: str | None, rows: list[dict[str, str]], png: bytes | None) -> str:
    """HTML of a run or a search in a notebook: name and folder, a table, a figure."""
    from pandas import DataFrame

    parts = [f"<p><b>{escape(folder.name)}</b> &ensp; {escape(status)} &ensp; <code>{escape(str(folder))}</code></p>"]
    if warning:
        parts.append(f"<p>{escape(warning)}</p>")
    if rows:
        parts.append(DataFrame(rows).fillna("").to_html(index=False, border=0))
    if png:
        source = f"data:image/png;base64,{b64encode(png).decode()}"
        parts.append(f'<img src="{source}" alt="{escape(folder.name)}" style="max-width: 100%; background: white">')
    return "\n".join(parts)


def last_parameters(experiment: Experiment, folder: RunFolder, data: Data) -> Tree:
    """Parameters in the last checkpoint of a run, as arrays. Raises UserError if there is none or it is damaged."""
    files = checkpoints(folder.checkpoints)
    if not files:
        raise UserError(f"{folder.path} has no checkpoint yet, so it has no parameters; resume it")
    (algorithm,) = build_algorithms([experiment], *data)
    return tree_map(lambda leaf: leaf.numpy(), algorithm.evaluate_params(read_checkpoint(files[-1])[0]))
