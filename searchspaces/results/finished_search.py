"""Results of a search: its trials, tables and figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

from hedgerow.algorithms.slots.fedex import FedEx
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.numbers import TRANSMISSIONS, number, percent, unit_of
from hedgerow.platform.common.table import Table
from hedgerow.platform.config.experiment import Evaluation
from hedgerow.platform.config.model_selection import uses_test_samples
from hedgerow.platform.runs.finished_run import page, rounds_frame
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runtime.factory import Data
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import dropped_warning, scores_text
from hedgerow.platform.tracking.records import BLOCKS
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import fedex_warnings, final_value
from hedgerow.platform.tracking.tracker import RunLog
from hedgerow.platform.ui.charts import figure
from hedgerow.platform.ui.plots import curve_figures
from hedgerow.platform.ui.plotting import free_places, save
from hedgerow.platform.ui.series import Points
from hedgerow.searchspaces.results.deployed_model import DeployedModel, read_deployed
from hedgerow.searchspaces.results.fedex_theta import Distribution, distributions
from hedgerow.searchspaces.results.hedge_curves import HedgeCurves, deployed_curves, score_kind
from hedgerow.searchspaces.results.search_plots import (
    NAMED,
    best_runs,
    hedge_charts,
    parallel_lines,
    theta_chart,
)
from hedgerow.searchspaces.results.trials import (
    WINNER,
    Row,
    Trial,
    best_per_metric,
    choice,
    expert_folder,
    hedge_summary,
    sweep_rows,
    trial_labels,
    trial_table,
)
from hedgerow.searchspaces.spaces.packing import COPIED
from hedgerow.searchspaces.spaces.search_file import SearchSpec, read_search
from hedgerow.searchspaces.spaces.space import with_overrides

if TYPE_CHECKING:
    from pandas import DataFrame


TEST_NOTE = (
    "Test data took part in the selection (search.allow_test_selection): the score of the winner is not an estimate of "
    "its performance on new data."
)


@dataclass(frozen=True)
class FinishedSearch:
    """A finished search or, if read from its folder, the current state of an unfinished one.

    trials: sorted by their numbers. hedge: one record per round of Hedge; empty for other kinds of search.
    warning: problems that occurred during the search.
    """

    folder: RunFolder
    spec: SearchSpec
    trials: list[Trial]
    hedge: list[RoundRecord]
    warning: str | None = None
    data: Data | None = field(default=None, repr=False, compare=False)
    """Data set and partition, if the search was given its own, for `deployed`."""
    headings: Sequence[str] = ()
    """Name of the method of each trial, in a line of a published table."""

    @classmethod
    def read(cls, folder: RunFolder, data: Data | None = None, headings: Sequence[str] = ()) -> Self:
        """Reads a search from its folder, without importing classes that its file names.

        data: data set and partition, if the search was given its own. Raises UserError when the folder of an expert of
        Hedge, whose records name experts by their numbers, is missing.
        """
        spec, hedge, trials = read_search(folder.experiment), RunLog(folder.metrics).read(), read_trials(folder)
        known = {int(trial.name) for trial in trials}
        for expert in range(len(hedge[-1]["weights"]) if hedge else 0):
            if expert not in known:
                raise UserError(
                    f"{expert_folder(folder.path, expert)} is missing, so Hedge's records cannot be read; restore it "
                    "from a copy"
                )
        return cls(folder, spec, trials, hedge, data=data, headings=headings)

    @cached_property
    def record(self) -> dict[str, Any]:
        """Contents of its run.json when it is first read."""
        return self.folder.record()

    @cached_property
    def runs(self) -> list[Run]:
        """Runs of the trials that have a round."""
        return [
            Run.read(
                expert_folder(self.folder.path, int(trial.name)),
                self.headings[int(trial.name)] if self.headings else "",
                self.folder,
            )
            for trial in self.trials
            if trial.records
        ]

    def as_learner(self) -> Run:
        """Hedge as one run: each round has the experts' results, averaged by the weights before that round."""
        values = self.spec.resolved
        records = [{"round": record["round"], **record["expected"]} for record in self.hedge]
        if self.spec.experiment.task.partition.is_stream:
            # Hedge's running mean on new tasks, with the weights of each round.
            sums = accumulate(record["test_accuracy"] for record in records)
            records = [{**r, "ctm": total / n} for n, (r, total) in enumerate(zip(records, sums, strict=True), 1)]
        return Run(self.folder, self.record, values, records, "Hedge")

    @property
    def deployed(self) -> DeployedModel:
        """Model that Hedge deploys after the latest complete round, read anew on each access. Raises UserError."""
        overrides = {int(trial.name): trial.overrides for trial in self.trials}
        return read_deployed(self.folder, self.spec, overrides, self.data)

    @property
    def blocks(self) -> list[RoundRecord]:
        """Records of the blocks of work of a search that promotes experts; empty for others."""
        return RunLog(self.folder.path / BLOCKS).read()

    @property
    def status(self) -> str:
        """Status in its folder: finished, running, interrupted or failed."""
        return self.folder.status

    @property
    def is_presentable(self) -> bool:
        """Whether a table may show it: it is finished or, on fixed data, was interrupted after a round. Scores on a
        stream need all of its tasks.
        """
        stopped = self.status == "interrupted" and not self.spec.experiment.is_stream
        return self.status == "finished" or (stopped and any(trial.records for trial in self.trials))

    @property
    def winner(self) -> Trial | None:
        """Same as `best`; None if there is none."""
        search = self.spec.search
        if search.is_one_run:
            return next((trial for trial in self.trials if trial.records and trial.status != "failed"), None)
        return choice(self.trials, search.metric, search.mode, self.hedge, search.smooth)

    @property
    def best(self) -> Trial:
        """Expert with the largest final weight; in a sweep, the trial with the best smoothed metric.

        A trial that failed or diverged is never the best one. Raises UserError if no other one has a value.
        """
        if (winner := self.winner) is None:
            raise UserError(f"{self.folder} has no best trial: {self.obstacle}")
        return winner

    @property
    def obstacle(self) -> str:
        """Reason why there is no winner, if there is none."""
        if not self.trials:
            return "no trial has started"
        if any(trial.is_sound for trial in self.trials):
            return f"no trial that neither failed nor diverged has a finite {self.spec.search.metric} yet"
        reason = next((f": {trial.diverged}" for trial in self.trials if trial.diverged), "")
        return f"all {len(self.trials)} trials failed or diverged{reason}"

    @property
    def divergence_warnings(self) -> list[str]:
        """Sentences about trials that diverged, and about answers of clients that the winner left out."""
        winner, trials = self.winner, [trial for trial in self.trials if trial.diverged]
        if winner is None:
            return [f"the search has no winner: {self.obstacle}"]
        if self.spec.search.is_one_run:
            return [f"trial {trial.name}: {trial.diverged}" for trial in trials]
        numbers = ", ".join(trial.name for trial in trials)
        sentences = [f"{len(trials)} of {len(self.trials)} trials diverged and cannot win: {numbers}"] * bool(trials)
        if dropped := int(sum(record["dropped"] for record in winner.records)):
            sentences.append(f"trial {winner.name}, the winner: {dropped_warning(dropped).removeprefix('warning: ')}")
        return sentences

    @property
    def fedex_warnings(self) -> list[str]:
        """Sentences about the best trial, see `summary.fedex_warnings`."""
        if (winner := self.winner) is None or (fedex := self._fedex(winner)) is None:
            return []
        trial = "" if self.spec.search.is_one_run else f"trial {winner.name}, the winner: "
        return [f"{trial}{sentence}" for sentence in fedex_warnings(fedex, winner.records)]

    @property
    def test_score(self) -> dict[str, float]:
        """Test accuracy and loss of the best trial at its last evaluation or, if it ended before that, of its last
        checkpoint; they selected nothing. {} on a stream, and without a best trial.
        """
        winner = self.winner
        if winner is None or self.spec.experiment.is_stream:
            return {}
        names = [f"test_{name}" for name in self.spec.experiment.task.modes]
        scores = {name: final_value(winner.records, name) for name in names}
        return {name: value for name, value in scores.items() if value is not None} or self._tested.get("scores", {})

    @property
    def _tested(self) -> dict[str, Any]:
        """Test score of the best trial's last checkpoint, see `score_winner`; {} if it was not needed."""
        tested = self.folder.record().get("tested") or {}
        return tested if self.winner and tested.get("trial") == self.winner.name else {}

    @property
    def winner_scores(self) -> dict[str, float]:
        """Final value of the metric of the search for the best trial, and its `test_score`."""
        metric, winner = self.spec.search.metric, self.winner
        value = None if winner is None else final_value(winner.records, metric)
        return ({} if value is None else {metric: value}) | self.test_score

    @property
    def winner_label(self) -> str:
        """Configuration of the best trial; empty if there is none."""
        if (winner := self.winner) is None:
            return ""
        return trial_labels(self.trials)[self.trials.index(winner)].removeprefix(f"{winner.name} ")

    @property
    def winner_name(self) -> str:
        """Name of the best trial; empty if there is none, or only one run."""
        winner = None if self.spec.search.is_one_run else self.winner
        return winner.name if winner else ""

    @property
    def labels(self) -> list[str]:
        """Label of each trial in figures, with a mark on that of the best one."""
        named = zip(self.trials, trial_labels(self.trials), strict=True)
        return [label + WINNER * (trial.name == self.winner_name) for trial, label in named]

    @property
    def test_selection_warning(self) -> str | None:
        """Warning about a selection by test samples; None if there was none."""
        return TEST_NOTE if self.spec.selects_on_test else None

    @property
    def selection_lines(self) -> list[str]:
        """Sentences about the samples that selected the best trial, and its scores; empty on a stream. If every
        trial failed or diverged, a sentence that says so.
        """
        if self.trials and not any(trial.is_sound for trial in self.trials):
            return [f"There is no winner: {self.obstacle}."]
        if not self.test_score:
            return []
        validation = self.spec.experiment.task.validation
        lines = []
        if validation and not self.spec.selects_on_test:
            whose = (
                "the training samples, at the server" if validation.is_at_server else "each client's training samples"
            )
            lines = [f"Validation samples: {percent(validation.fraction)} of {whose} (task.validation)."]
        evaluation = self.spec.experiment.evaluation
        if evaluation.test == "every" and not self.spec.selects_on_test:
            lines.append(
                "Test samples scored every evaluation of the trials (evaluation.test: every) and selected nothing."
            )
        scores = scores_text(self.winner_scores)
        if self.spec.search.is_one_run:
            return [*lines, f"Final model: {scores}."]
        at = f", checkpoint of round {self._tested['round']}" if self._tested else ""
        return [*lines, f"Winner: {self.winner_label} (trial {self.best.name}{at}): {scores}."]

    @property
    def work_sentences(self) -> list[str]:
        """Sentences about the work of the trials against that of a full grid, and of `search.budget`."""
        rounds, known = self.spec.experiment.rounds, len(self.spec.configurations) or self.spec.search.samples or 1
        ran = sum(trial.trained for trial in self.trials)
        share = percent(ran / (known * rounds))
        work = [f"Work: {ran} rounds, {share} of a full grid ({known} trial{'s' * (known > 1)} of {rounds} rounds)."]
        note = self.folder.record().get("budget")
        if note is None:
            return [] if self.spec.search.is_one_run else work
        key, unit, what = ("seconds", "s", "") if "seconds" in note else ("client_rounds", "count", " client rounds")
        spent, limit = (number(note[name], unit) for name in ("spent", key))
        end = ", which ended the search" if note["ended"] else ""
        return [*work, f"Budget: {spent} of {limit}{what} spent{end} (search.budget)."]

    @property
    def deployed_curves(self) -> dict[str, Points]:
        """Curves of the deployed policies and of the best expert in hindsight, see `hedge_curves.deployed_curves`."""
        experts = [{record["round"]: record for record in trial.records} for trial in self.trials]
        return deployed_curves(self.hedge, experts, self.spec.search.metric) if self.hedge and self.trials else {}

    @property
    def deployed_sentences(self) -> list[str]:
        """Sentences about the deployed policies, and the reason if there is no mixture; empty without Hedge."""
        if blocks := self.blocks:
            last = blocks[-1]
            regret, bound = (number(last[key], "loss") for key in ("regret", "bound"))
            return [
                f"Promotion: {last['block']} blocks of work; trial {last['leader']:03d} leads; the regret over the "
                f"blocks is {regret} (bound {bound})."
            ]
        metric, curves = self.spec.search.metric, self.deployed_curves
        if not curves:
            return []
        kind = score_kind(metric)
        means = ", ".join(f"{name} {number(points[-1][1], unit_of(kind))}" for name, points in curves.items())
        missing = self.folder.record().get("no_mixture")
        return [
            f"Mean {kind} of the deployed policies: {means}.",
            *([f"No mixture is recorded: {missing}."] if missing else []),
        ]

    @property
    def rows(self) -> list[Row]:
        """One row per trial, best first."""
        search = self.spec.search
        targets, target_metric = self._wanted.targets, self._wanted.target_metric
        hedge = self.hedge or None
        return sweep_rows(self.trials, search.metric, search.mode, targets, hedge, target_metric, search.smooth)

    @property
    def best_rows(self) -> list[Row]:
        """Best trial for each metric and target, one row each; by metrics of test samples only if these selected.
        Empty if there is only one run.
        """
        if self.spec.search.is_one_run:
            return []
        selects_on_test = self.spec.selects_on_test or self.spec.experiment.task.partition.is_stream
        return best_per_metric(
            self.trials,
            self._wanted.targets,
            self._wanted.target_metric,
            lambda metric: selects_on_test or not uses_test_samples(metric),
            self.spec.search.smooth,
            self.spec.experiment.task.modes,
        )

    @property
    def thetas(self) -> list[Distribution]:
        """Distributions of the best trial after each of its rounds; empty if its clients do not draw by FedEx."""
        if (winner := self.winner) is None or (fedex := self._fedex(winner)) is None:
            return []
        return distributions(fedex, winner.records)

    def _fedex(self, trial: Trial) -> FedEx | None:
        """Section `fedex` of a trial; None if its clients do not draw by FedEx."""
        usual = self.spec.experiment.fedex
        own = {key: value for key, value in trial.overrides.items() if key.partition(".")[0] == "fedex"}
        # Of the file, only this section: others may name classes, which reading does not import.
        section = with_overrides({"fedex": usual and usual.model_dump()}, own)["fedex"]
        return FedEx.model_validate(section) if section else None

    @property
    def summary(self) -> dict[str, Any]:
        """Hedge's regret and choices (`hedge_summary`); in a sweep, the row of the best trial. With the test score of
        the best trial, as `winner_test_accuracy` and `winner_test_loss`, and its distributions of FedEx, as `theta`. If
        there is no best trial, without these.
        """
        winner: dict[str, Any] = {f"winner_{name}": value for name, value in self.test_score.items()}
        if thetas := self.thetas:
            winner["theta"] = {one.name: one.rows for one in thetas}
        if self.hedge:
            labels = trial_labels(self.trials)
            return hedge_summary(self.hedge, labels, self.spec.search.metric, self.trials) | winner
        return self.rows[0] | winner if self.winner else winner

    @cached_property
    def frame(self) -> "DataFrame":
        """Trials as a pandas DataFrame, best first: searched keys, final metrics and costs."""
        # Importing pandas takes a second, which a search does not need to wait for.
        from pandas import DataFrame

        return DataFrame(self.rows).set_index("trial") if self.trials else DataFrame()

    @cached_property
    def rounds(self) -> "DataFrame":
        """Rounds of all trials as a pandas DataFrame, indexed by trial and round."""
        from pandas import concat

        frames = {trial.name: rounds_frame(trial.records) for trial in self.trials if trial.records}
        return concat(frames, names=["trial"]) if frames else rounds_frame([])

    @cached_property
    def weights(self) -> "DataFrame":
        """Hedge's weights before each round as a pandas DataFrame: a row per round, a column per trial; empty for other
        kinds.
        """
        from pandas import DataFrame

        weights = {record["round"]: record["weights"] for record in self.hedge}
        names = [trial.name for trial in self.trials]
        return DataFrame.from_dict(weights, "index", columns=names).rename_axis("round")

    @cached_property
    def regret(self) -> "DataFrame":
        """Hedge's rounds as a pandas DataFrame: its loss in each round, the cumulative losses of Hedge and of the best
        expert, regret and bound, and the leading and the best expert.
        """
        from pandas import DataFrame

        columns = ["round", "hedge_loss", "cumulative_loss", "best_loss", "regret", "bound", "leader", "best"]
        return DataFrame(self.hedge, columns=columns).set_index("round")

    def figure(self, name: str | None = None) -> Any:
        """Draws one of `figures` with matplotlib; by default Hedge's weights or, in a sweep, parallel coordinates.

        Raises UserError.
        """
        figures = self._drawn
        name = name or next(iter(figures), "")
        if name not in figures:
            raise UserError(
                f"{self.folder.name} has no figure {name!r} (available: {', '.join(figures) or 'none yet'})"
            )
        return figures[name]()

    @property
    def figures(self) -> list[str]:
        """Names of the figures that `figure` draws."""
        return list(self._drawn)

    @property
    def _drawn(self) -> dict[str, Callable[[], Any]]:
        if not any(trial.records for trial in self.trials):
            return {}
        search, labels, winner = self.spec.search, self.labels, self.winner
        objective = search.metric, search.mode, search.smooth
        best = best_runs(self.trials, NAMED, *objective, winner)
        curves = HedgeCurves.read(self.hedge, NAMED) if self.hedge else None
        # A trial has the same colour in every figure; black is Hedge's own.
        shown = dict.fromkeys([*(curves.named if curves else ()), *best])
        places = dict(zip(shown, free_places(), strict=False))
        charts = hedge_charts(curves, labels, places, self.deployed_curves, search.metric) if curves else {}
        parallel = {"parallel_coordinates": partial(parallel_lines, self.trials, *objective, places, winner)}
        left_out = len(self.trials) - len(best)
        note = f"The best {len(best)} of {len(self.trials)} trials." if left_out else ""
        runs = {labels[i]: [records] for i, records in best.items()}
        return {
            **{name: partial(figure, [chart], width=7) for name, chart in charts.items()},
            **({} if search.is_one_run else parallel),
            **{f"fedex_{one.name}": partial(figure, [theta_chart(one)], width=7) for one in self.thetas},
            **curve_figures(runs, self._wanted.accuracies, {labels[i]: places[i] for i in best}, note),
        }

    def __repr__(self) -> str:
        return f"<search {self.folder.name}: {self.status}, {len(self.trials)} trials>"

    def _repr_html_(self) -> str:
        notes = "; ".join(note for note in (self.warning, self.test_selection_warning) if note)
        return page(
            self.folder, self.status, notes or None, trial_table(self.rows, winner=self.winner_name), self._repr_png_()
        )

    def _repr_png_(self) -> bytes | None:
        return self.figure()._repr_png_() if self.figures else None

    def write(self) -> None:
        """Writes results.csv and results.md to the search's folder."""
        path = self.folder.path
        Table(self.rows).csv(path / "results.csv")
        winner = self.winner_name
        text = f"# {self.folder.name}\n\n{trial_table(self.rows, winner=winner).markdown()}\n"
        if any(row.get("transmissions") for row in self.rows):
            text += f"{TRANSMISSIONS}\n"
        for theta in self.thetas:
            text += f"\n## {theta.table.title}\n\n{theta.table.markdown()}"
        if self.best_rows:
            text += f"\n## Best by metric\n\n{trial_table(self.best_rows, winner=winner).markdown()}"
        warning = [f"**{note}**" for note in [self.test_selection_warning] if note]
        if notes := warning + self.work_sentences + self.selection_lines:
            text += "\n" + "\n\n".join(notes) + "\n"
        (path / "results.md").write_text(text, encoding="utf-8")

    def draw(self) -> None:
        """Writes the figures to the search's folder."""
        for name in self.figures:
            save(self.figure(name), self.folder.figures / name)

    @property
    def _wanted(self) -> Evaluation:
        return self.spec.experiment.evaluation


def read_trials(folder: RunFolder) -> list[Trial]:
    """Reads the started trials of a search from their run folders, sorted by number."""
    # By number: from 1000 on, names have four digits.
    paths = sorted((folder.path / "experts").glob("*"), key=lambda path: (len(path.name), path.name))
    experts = [RunFolder(path) for path in paths]
    return [
        Trial(
            expert.name,
            record["overrides"],
            RunLog(expert.metrics).read(),
            expert.status,
            "; ".join(record.get("diverged", [])),
            record.get(COPIED, 0),
        )
        for expert in experts
        if expert.exists
        for record in [expert.record()]
    ]
