"""Results of experiments over their seeds, as the commands `run` and `resume` print them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.runs.comparison import comparison_output
from hedgerow.platform.runs.finished_run import FinishedRun
from hedgerow.platform.runs.finished_series import FinishedSeries, series_table
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.ui.command_output import CommandOutput

CAPTION = "Mean over seeds [95 % confidence interval of the mean by Student's t]; bands in figures: standard deviation"


class OverSeeds:
    """A table over seeds with a row per experiment and, of several experiments, their paired differences."""

    def __init__(self, groups: Sequence[list[FinishedRun]]):
        self.series = [FinishedSeries(group) for group in groups]
        self.table = series_table(self.series, "Over seeds")
        self._compared: CommandOutput | None = None
        self._note = ""
        if len(groups) > 1:
            folders = {str(run.folder.path): run.folder for group in groups for run in group}
            try:
                self._compared = comparison_output(
                    list(folders), [Run.read(one) for one in folders.values()], means=False
                )
            except UserError as error:
                self._note = f"no comparison: {error}"

    @property
    def name(self) -> str:
        """Name of the folder of the figures."""
        series = self.series[0].series
        return series.name if series and len(self.series) == 1 else "comparison"

    @property
    def records(self) -> dict[str, list[list[RoundRecord]]]:
        """Records of the runs of each experiment, by its label."""
        pairs = zip(self.table.cells["experiment"], self.series, strict=True)
        return {label: [run.records for run in one.runs] for label, one in pairs}

    @property
    def document(self) -> dict[str, Any]:
        """The numbers, for the JSON document."""
        experiments = [
            {
                "name": one.name,
                "series": one.series.name if one.series else None,
                "seeds": one.seeds,
                "over_seeds": {name: asdict(estimate) for name, estimate in one.estimates.items()},
            }
            for one in self.series
        ]
        return {"experiments": experiments, "comparison": self._compared.document if self._compared else None}

    def render(self) -> None:
        """Print the table and the differences."""
        self.table.print()
        click.echo(CAPTION)
        if self._compared:
            self._compared.render()
        if self._note:
            click.echo(self._note)
