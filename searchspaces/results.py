"""What a search leaves behind: its trials, tables and figures."""

from dataclasses import dataclass
from typing import Any

from hedgerow.platform.experiment import Evaluation
from hedgerow.platform.runs import RunFolder
from hedgerow.platform.tracking import Record, RunLog
from hedgerow.searchspaces.figures import draw_losses, draw_parallel, draw_regret, draw_trials, draw_weights
from hedgerow.searchspaces.report import (
    Row,
    Trial,
    best_per_metric,
    hedge_summary,
    ranked,
    sweep_rows,
    to_csv,
    to_markdown,
    trial_labels,
)
from hedgerow.searchspaces.search_file import SearchPlan


@dataclass(frozen=True)
class FinishedSearch:
    """A search that came to its end.

    trials: in the order of their numbers. hedge: one record per round of Hedge's, none for the other kinds.
    warning: a sentence about what went wrong on the way.
    """

    folder: RunFolder
    plan: SearchPlan
    trials: list[Trial]
    hedge: list[Record]
    warning: str | None = None

    @property
    def best(self) -> Trial:
        """The expert with the largest weight in the end; of a sweep, the trial with the best final metric."""
        if self.hedge:
            return self.trials[self.hedge[-1]["leader"]]
        return ranked(self.trials, self.plan.search.metric, self.plan.search.mode)[0]

    @property
    def rows(self) -> list[Row]:
        """One row per trial, best first."""
        search = self.plan.search
        targets, target_metric = self._wanted.targets, self._wanted.target_metric
        return sweep_rows(self.trials, search.metric, search.mode, targets, self.hedge or None, target_metric)

    @property
    def best_rows(self) -> list[Row]:
        """One row per metric and target: which trial is best."""
        return best_per_metric(self.trials, self._wanted.targets, self._wanted.target_metric)

    @property
    def summary(self) -> dict[str, Any]:
        """Hedge's regret and choices (`hedge_summary`); of a sweep, the best trial's row."""
        if self.hedge:
            return hedge_summary(self.hedge, trial_labels(self.trials), self.plan.search.metric, self.trials)
        return self.rows[0]

    def write(self) -> None:
        """results.csv, results.md, and the figures, into the search's folder."""
        path, figures = self.folder.path, self.folder.figures
        search, labels = self.plan.search, trial_labels(self.trials)
        to_csv(self.rows, path / "results.csv")
        text = f"# {self.folder.name}\n\n{to_markdown(self.rows)}\n## Best by metric\n\n{to_markdown(self.best_rows)}"
        (path / "results.md").write_text(text, encoding="utf-8")
        if self.hedge:
            draw_weights(self.hedge, labels, figures)
            draw_losses(self.hedge, labels, figures)
            draw_regret(self.hedge, figures)
        draw_parallel(self.trials, search.metric, search.mode, figures)
        draw_trials(self.trials, figures, self._wanted.accuracies)

    @property
    def _wanted(self) -> Evaluation:
        return self.plan.experiment.evaluation


def read_trials(folder: RunFolder) -> list[Trial]:
    """The trials of a search that have begun, from their run folders, in the order of their numbers."""
    experts = [RunFolder(path) for path in sorted((folder.path / "experts").glob("*"))]
    return [
        Trial(expert.name, expert.record()["overrides"], RunLog(expert.metrics).read(), expert.record()["status"])
        for expert in experts
        if expert.exists
    ]
