"""Recording of a search: the curves of all configurations in one JSON file, for replays by other tuners."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.storage.sealed_json import read_object, write_object
from hedgerow.platform.tracking.run_folder import find_run
from hedgerow.searchspaces.results.trials import Trial
from hedgerow.searchspaces.spaces.search_file import SearchSpec
from hedgerow.searchspaces.spaces.search_section import STREAM, Overrides, evaluated_metrics

if TYPE_CHECKING:
    from pandas import DataFrame

RECORDING = "recording.json"
"""Name of the file in the folder of a search with `record: all`."""

COSTS = {"client_rounds": "participants", "sample_gradients": "sample_gradients"}
"""Costs of a round by their column, and the entry of the round's record that they come from."""


@dataclass(frozen=True)
class Recording:
    """Curves of all configurations of a search.

    name: folder of the search. file: its resolved experiment file, with the section `search`. configurations:
    overrides of each. rounds: columns of a table with a row per configuration and round, sorted by both; metrics are
    None in rounds that were not evaluated.
    """

    name: str
    file: dict[str, Any]
    configurations: list[Overrides]
    rounds: dict[str, list[Any]]

    @classmethod
    def of(cls, name: str, spec: SearchSpec, trials: Sequence[Trial]) -> Self:
        """Takes the curves of a finished search. Raises ValueError when rounds or costs of a trial are missing."""
        for trial in trials:
            if len(trial.records) != spec.experiment.rounds:
                raise ValueError(f"trial {trial.name} ended in round {len(trial.records)} ({trial.status})")
            if any(entry not in record for record in trial.records for entry in COSTS.values()):
                raise ValueError(f"trial {trial.name} continues a run whose rounds have no counted samples")
        metrics = dict.fromkeys([spec.search.metric, *evaluated_metrics(spec.experiment), *STREAM])
        reported = [name for name in metrics if any(name in trial.records[-1] for trial in trials)]
        rows = [(number, record) for number, trial in enumerate(trials) for record in trial.records]
        columns: dict[str, list[Any]] = {
            "configuration": [number for number, _ in rows],
            "round": [record["round"] for _, record in rows],
            **{column: [record[entry] for _, record in rows] for column, entry in COSTS.items()},
            **{name: [record.get(name) for _, record in rows] for name in reported},
        }
        return cls(name, spec.resolved, [trial.overrides for trial in trials], columns)

    @classmethod
    def read(cls, name: str | Path) -> Self:
        """Reads a recording: the file, or a search by its folder, name or URI. Raises UserError."""
        file = Path(name)
        if not file.is_file():
            file = find_run(str(name)).path / RECORDING
            if not file.exists():
                raise UserError(f"{name} has no {RECORDING}; run its search again with `--set search.record=all`")
        values = read_object(file)
        if missing := next((one.name for one in fields(cls) if one.name not in values), None):
            raise UserError(f"{file} is not a recording: it has no {missing!r}; name the {RECORDING} of a search")
        return cls(*(values[one.name] for one in fields(cls)))

    def write(self, file: Path) -> None:
        """Write the recording as one JSON object; replaces the file at once."""
        write_object(file, {one.name: getattr(self, one.name) for one in fields(self)})

    @property
    def metrics(self) -> list[str]:
        """Names of the recorded metrics."""
        return [name for name in self.rounds if name not in ("configuration", "round", *COSTS)]

    @cached_property
    def curves(self) -> list[list[RoundRecord]]:
        """Records of each configuration, in the order of rounds; a round without a metric has no such entry."""
        curves: list[list[RoundRecord]] = [[] for _ in self.configurations]
        names = [name for name in self.rounds if name != "configuration"]
        for number, *values in zip(self.rounds["configuration"], *(self.rounds[n] for n in names), strict=True):
            record = {name: value for name, value in zip(names, values, strict=True) if value is not None}
            curves[int(number)].append(record)
        return curves

    @cached_property
    def frame(self) -> "DataFrame":
        """The table of rounds as a pandas DataFrame, indexed by configuration and round."""
        from pandas import DataFrame

        return DataFrame(self.rounds).set_index(["configuration", "round"])

    def cost(self, column: str) -> np.ndarray:
        """Cost of each round, (configurations, rounds). column: one of `COSTS`."""
        return np.array([[record[column] for record in curve] for curve in self.curves])
