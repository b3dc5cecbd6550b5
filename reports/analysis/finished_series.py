"""Runs of one experiment with several seeds, summarised over the seeds."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hedgerow.platform.common.percent import percent
from hedgerow.platform.runs.finished_run import FinishedRun, page, rounds_frame
from hedgerow.platform.tracking.formatting import loss_text, size_text
from hedgerow.platform.tracking.run_folder import SeedSeries
from hedgerow.platform.tracking.summary import target_heading
from hedgerow.platform.ui.plots import seed_curves
from hedgerow.reports.analysis.statistics import Estimate

if TYPE_CHECKING:
    from pandas import DataFrame

HEADINGS = {
    "test_accuracy": "test accuracy",
    "best_test_accuracy": "best",
    "test_loss": "test loss",
    "validation_accuracy": "validation",
    "ctm": "CTM",
    "ltm": "LTM",
    "client_accuracy": "clients",
    "client_accuracy_worst10": "worst 10 %",
    "transmissions": "transmissions",
    "bytes": "sent",
}
"""Entries of a run's summary in the table of a series, with their headings."""


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
        return seed_curves({self.name: [run.records for run in self.runs]}, by, targets)

    def row(self) -> dict[str, str]:
        """Row of the table over seeds: each number with its interval."""
        cells = {"experiment": self.name, "seeds": ", ".join(map(str, self.seeds))}
        cells |= {text: _text(key, self.estimates[key]) for key, text in HEADINGS.items() if key in self.estimates}
        for label in self.runs[0].summary.get("to_target", {}):
            key, heading = f"transmissions_to_{label}", f"to {target_heading(label)}"
            reached = sum(bool(run.summary["to_target"].get(label)) for run in self.runs)
            whole = f"{reached} of {len(self.runs)} seeds"
            cells[heading] = _text(key, self.estimates[key]) if key in self.estimates else whole
        return cells

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.runs)} seeds>"

    def _repr_html_(self) -> str:
        first = self.runs[0]
        return page(first.folder, f"seeds {', '.join(map(str, self.seeds))}", None, [self.row()], self._repr_png_())

    def _repr_png_(self) -> bytes | None:
        return self.figure()._repr_png_() if all(run.records for run in self.runs) else None


def _numbers(summary: dict[str, Any]) -> dict[str, float]:
    """Numbers of a summary by name, including the costs of targets that were reached."""
    entries = {**summary, **summary.get("report", {})}
    for label, cost in summary.get("to_target", {}).items():
        entries |= {f"{unit}_to_{label}": number for unit, number in (cost or {}).items()}
    return {name: float(number) for name, number in entries.items() if isinstance(number, int | float)}


def _text(key: str, estimate: Estimate) -> str:
    """Text such as "94.2 % [93.1 %, 95.3 %]"."""

    def number(value: float) -> str:
        if "accuracy" in key or key in ("ctm", "ltm"):
            return percent(value)
        return loss_text(value) if "loss" in key else size_text(value) if key == "bytes" else f"{value:.4g}"

    if estimate.low is None or estimate.high is None:
        return number(estimate.mean)
    return f"{number(estimate.mean)} [{number(estimate.low)}, {number(estimate.high)}]"
