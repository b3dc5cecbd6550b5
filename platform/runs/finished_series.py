"""Runs of one experiment with several seeds, summarised over the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hedgerow.platform.common.numbers import TARGET
from hedgerow.platform.common.table import Table
from hedgerow.platform.runs.finished_run import FinishedRun, page, rounds_frame
from hedgerow.platform.runs.statistics import Estimate
from hedgerow.platform.tracking.formatting import summary_columns, summary_row
from hedgerow.platform.tracking.run_folder import SeedSeries
from hedgerow.platform.ui.plots import curves

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class FinishedSeries:
    """Runs of one experiment with several seeds.

    runs: one for each seed, in the order of `seeds`.
    """

    runs: list[FinishedRun]

    @property
    def name(self) -> str:
        """Name of the experiment."""
        return self.runs[0].experiment.name

    @property
    def series(self) -> SeedSeries | None:
        """The series as the run folders record it; None for a single run."""
        return self.runs[0].folder.series

    @property
    def seeds(self) -> list[int]:
        """Seed of each run."""
        return [run.experiment.seed for run in self.runs]

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Mean over the seeds, with its 95 % confidence interval, of each number that all summaries have.

        `transmissions_to_X` and `rounds_to_X` are the costs of reaching a target, if every seed reaches it.
        """
        numbers = [_numbers(run.summary) for run in self.runs]
        common = [name for name in numbers[0] if all(name in one for one in numbers)]
        return {name: Estimate.of([one[name] for one in numbers]) for name in common}

    @cached_property
    def summary(self) -> "DataFrame":
        """`estimates` as a pandas frame: a row for each number, with the columns mean, low and high."""
        from pandas import DataFrame

        rows = {name: (one.mean, one.low, one.high) for name, one in self.estimates.items()}
        return DataFrame.from_dict(rows, "index", columns=["mean", "low", "high"])

    @cached_property
    def frame(self) -> "DataFrame":
        """The rounds of all runs as a pandas frame, indexed by seed and round."""
        from pandas import concat

        return concat({run.experiment.seed: rounds_frame(run.records) for run in self.runs}, names=["seed"])

    def figure(self, by: str = "round") -> Any:
        """Mean curves over the seeds as a matplotlib figure, with bands of one standard deviation.

        by: "round", or "traffic" for transmitted parameters.
        """
        targets = self.runs[0].experiment.evaluation.accuracies
        return curves({self.name: [run.records for run in self.runs]}, by, targets)

    @property
    def row(self) -> dict[str, Any]:
        """Row of the table over seeds: each number with its interval."""
        row: dict[str, Any] = {"experiment": self.name, "seeds": len(self.seeds)}
        for name in summary_row(self.runs[0].summary):
            if name in self.estimates:
                row[name] = self.estimates[name]
            elif target := TARGET.fullmatch(name):
                reached = sum(bool(run.summary["to_target"].get(target[2])) for run in self.runs)
                row[name] = f"{reached} of {len(self.runs)} seeds reach it"
        return row

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.runs)} seeds>"

    def _repr_html_(self) -> str:
        first = self.runs[0]
        return page(
            first.folder, f"seeds {', '.join(map(str, self.seeds))}", None, series_table([self]), self._repr_png_()
        )

    def _repr_png_(self) -> bytes | None:
        return self.figure()._repr_png_() if all(run.records for run in self.runs) else None


def series_table(series: Sequence[FinishedSeries], title: str = "") -> Table:
    """Table with a row per experiment; experiments with the same name are numbered."""
    names = [one.name for one in series]
    labels = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]
    rows = [one.row | {"experiment": label} for one, label in zip(series, labels, strict=True)]
    return Table(rows, title, [column for one in series for column in summary_columns(one.runs[0].summary)])


def _numbers(summary: dict[str, Any]) -> dict[str, float]:
    """Numbers of a summary by name, including the costs of targets that were reached."""
    entries = {**summary, **summary.get("report", {})}
    for label, cost in summary.get("to_target", {}).items():
        entries |= {f"{unit}_to_{label}": number for unit, number in (cost or {}).items()}
    return {name: float(number) for name, number in entries.items() if isinstance(number, int | float)}
