"""Results of a table row next to the published numbers."""

import math
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hedgerow.platform.common.percent import percent
from hedgerow.platform.tracking.formatting import dropped_text
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import first_to, summarise, target_heading, target_label
from hedgerow.platform.ui.plots import Histograms
from hedgerow.platform.ui.series import Points, smoothed
from hedgerow.searchspaces.reproductions.standing import after, devices, standing
from hedgerow.searchspaces.reproductions.table_file import Cells, TableRow, load_function
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.trials import Trial, cost_text, final_value, show, trial_labels

MARK = "†"
"""Marks cells of runs in which clients diverged."""

CHANGED = "*"
"""Marks rows that were run with other settings than in the source."""


@dataclass(frozen=True)
class RowResult:
    """Result of the search of a row. Rows on streams have one result per method."""

    row: TableRow
    folder: RunFolder
    finished: FinishedSearch
    headings: list[str]
    changed: list[str]
    grid: bool = False

    @classmethod
    def read(cls, row: TableRow, folder: RunFolder, heading: str = "") -> "RowResult":
        """Reads a result from the folder of a search. heading: the method, for a row on a stream."""
        note, finished = folder.record()["table"], FinishedSearch.read(folder)
        if row.is_stream:
            return HedgeResult(row, folder, finished, [heading], note["changed"])
        return SweepResult(row, folder, finished, note["headings"], note["changed"], note["grid"])

    @property
    def explained(self) -> str:
        """Explanation of the cells."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Prefix of the remarks."""
        return self.row.title

    def rows(self) -> list[dict[str, str]]:
        """Rows for people: measured values, and published values in brackets."""
        raise NotImplementedError

    def remarks(self) -> list[str]:
        """Details of the run: data, rounds, changes, and name of the run."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """All results, for JSON."""
        raise NotImplementedError

    @property
    def taken_from(self) -> dict[str, str]:
        """Run that each trial continued from, by the number of the trial; see `shared_trainings`."""
        return self.folder.record()["table"].get("taken_from", {})

    @property
    def _setting(self) -> str:
        return f"{self.row.title} {CHANGED}" if self.changed else self.row.title

    @property
    def _data(self) -> str:
        """Name of the data set, and the path of the user's own data."""
        section = self.finished.plan.experiment.task.data
        data = section.model_dump(mode="json", exclude_defaults=True)
        return " ".join(str(data[key]) for key in ("name", "path") if key in data) or section.name

    @property
    def _changes(self) -> list[str]:
        if not self.changed:
            return []
        return [f"{CHANGED} {self.title}: changed from the source: {', '.join(self.changed)}"]

    @property
    def _line(self) -> dict[str, Any]:
        """Name of the row, and its changed settings."""
        return {"line": self.folder.record()["table"]["line"], "changed": self.changed}

    @property
    def _origin(self) -> dict[str, Any]:
        """Provenance of the run: runs that it continued from, versions and commit."""
        record = self.folder.record()
        return {"taken_from": self.taken_from, "versions": record["versions"], "git_commit": record["git_commit"]}


# ---- sweeps over methods ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MethodCost:
    """Cost of one method to reach one target.

    transmissions: in FedAvg rounds, or in rounds if the row counts these; None if the target was not reached within
    `spent`. reference: transmissions of the row's first method. best_accuracy: best value of the row's metric, if that
    is an accuracy, otherwise of the test accuracy. configuration: label of the configuration that is shown, if several
    ran. dropped: number of client results that were left out.
    """

    heading: str
    transmissions: float | None
    spent: float
    reference: float | None
    best_accuracy: float | None
    configuration: str
    status: str
    rounds: int
    dropped: int
    seconds: float

    def text(self, targeted: bool) -> str:
        """Text for people: the cost of the target or, without a target, the best accuracy."""
        cost = cost_text(self.transmissions, self.spent, self.reference)
        return (cost if targeted else percent(self.best_accuracy)) + (MARK if self.dropped else "")


@dataclass(frozen=True)
class SweepResult(RowResult):
    """Result of a row that ran as a sweep over its methods: cells by target and method."""

    @property
    def targets(self) -> list[float]:
        return self.finished.plan.experiment.evaluation.targets

    @property
    def metric(self) -> str:
        return self.finished.plan.experiment.evaluation.target_metric

    @property
    def explained(self) -> str:
        if not self.targets:
            return "test accuracy of each method's best configuration; final values of all reported quantities"
        unit = "rounds" if self.row.unit == "rounds" else "transmissions, in FedAvg rounds,"
        return f"{unit} to the target: measured (ratio to the first method) [published]; +: not reached"

    def best(self, heading: str) -> tuple[Trial, str] | None:
        """Best trial of a method and its label: fewest transmissions to the first target, then to the next targets,
        then best metric. None if the method did not run. The label is empty if there is only one trial."""
        trials = self.finished.trials
        candidates = [t for t in trials if self.headings[int(t.name)] == heading and t.records]
        if not candidates:
            return None

        def cost(trial: Trial) -> tuple[float, ...]:
            firsts = [first_to(trial.records, target, self.metric) for target in self.targets]
            sign = 1 if "loss" in self.metric else -1
            values = [sign * r[self.metric] for r in trial.records if math.isfinite(r.get(self.metric, math.nan))]
            return (*(r[self.row.unit] if r else math.inf for r in firsts), min(values, default=math.inf))

        labels = dict(zip((t.name for t in candidates), trial_labels(candidates), strict=True))
        best = min(candidates, key=cost)
        return best, labels[best.name] if len(candidates) > 1 else ""

    def histograms(self, heading: str) -> Histograms:
        """Histograms of a method's best configuration, as `draw_histograms` takes them."""
        expert = self.expert(heading)
        return {} if expert is None else expert.record().get("histograms", {})

    def costs(self, target: float | None) -> list[MethodCost]:
        """Costs of each method that ran. target: None if the row has no target and only compares accuracies."""
        costs: list[MethodCost] = []
        reference = None
        metric = self.metric if "accuracy" in self.metric else "test_accuracy"
        for heading in self.row.methods:
            if not (best := self.best(heading)):
                continue
            trial, configuration = best
            summary = summarise(trial.records, [])
            first = None if target is None else first_to(trial.records, target, self.metric)
            needed = first[self.row.unit] if first else None
            if heading == next(iter(self.row.methods)):
                reference = needed
            costs.append(
                MethodCost(
                    heading,
                    needed,
                    spent=summary[self.row.unit],
                    reference=reference,
                    best_accuracy=max((r[metric] for r in trial.records if metric in r), default=None),
                    configuration=configuration,
                    status=trial.status,
                    rounds=summary["rounds"],
                    dropped=summary["dropped"],
                    seconds=summary["seconds"],
                )
            )
        return costs

    def rows(self) -> list[dict[str, str]]:
        rows = []
        targets: list[float | None] = [*self.targets]
        for target in targets or [None]:
            heading = "best" if target is None else target_heading(target_label(target, self.metric))
            cells = {cost.heading: cost.text(target is not None) for cost in self.costs(target)}
            rows.append(self._as_row(heading, cells, self.row.published.get(target, {})))
        return rows + self._further_rows()

    def _further_rows(self) -> list[dict[str, str]]:
        """Rows of comparisons other than targets."""
        best = {heading: trial[0].records for heading in self.row.methods if (trial := self.best(heading))}
        rows = after(best, self.row.after) | (devices(best) if self.targets else standing(best)) | self._studied
        published = self.row.published | {f"after {n} rounds": cells for n, cells in self.row.after.items()}
        return [self._as_row(what, cells, published.get(what, {})) for what, cells in rows.items()]

    def _as_row(self, target: str, cells: Cells, printed: Cells) -> dict[str, str]:
        both = {heading: _with_published(cells.get(heading, "-"), printed.get(heading)) for heading in self.row.methods}
        return {"setting": self._setting, "target": target, **both}

    @cached_property
    def _studied(self) -> dict[str, Cells]:
        return load_function(self.row.studies)(self.experts) if self.row.studies else {}

    @property
    def experts(self) -> dict[str, RunFolder]:
        """Run folders of the methods' best configurations."""
        return {heading: expert for heading in self.row.methods if (expert := self.expert(heading))}

    def expert(self, heading: str) -> RunFolder | None:
        """Run folder of a method's best configuration."""
        best = self.best(heading)
        return None if best is None else RunFolder(self.folder.path / "experts" / best[0].name)

    def remarks(self) -> list[str]:
        experiment, title = self.finished.plan.experiment, self.title
        costs = self.costs(self.targets[0] if self.targets else None)
        rounds = ", ".join(f"{cost.heading} {cost.rounds}" for cost in costs)
        notes = [f"{title}: data {self._data}; rounds run (of {experiment.rounds}): {rounds}; run {self.folder.name}"]
        notes += self._changes
        notes += [f"{title}: {c.heading}: {c.configuration}" for c in costs if c.configuration]
        sources = {heading: self.taken_from.get(str(int(run.path.name))) for heading, run in self.experts.items()}
        notes += [f"{title}: {heading}: trained once, in {run}" for heading, run in sources.items() if run]
        notes += [f"{title}: {c.heading}: the run {c.status} before its end" for c in costs if c.status != "finished"]
        return notes + [f"{MARK} {title}, {c.heading}: {dropped_text(c.dropped)}" for c in costs if c.dropped]

    def as_dict(self) -> dict[str, Any]:
        command = self.folder.record()["command"]
        return {
            **self._line,
            "grid": self.grid,
            **self._origin,
            # Only the names of folders and of the program.
            "command": " ".join(Path(part).name if Path(part).exists() else part for part in command),
            "unit": self.row.unit,
            "targets": {
                target_label(target, self.metric): {
                    "measured": [asdict(cost) for cost in self.costs(target)],
                    "published": self.row.published.get(target, {}),
                }
                for target in self.targets
            },
            "best_accuracy": {cost.heading: cost.best_accuracy for cost in self.costs(None)},
            "standing": {row["target"]: row for row in self._further_rows()},
        }


def _with_published(measured: str, published: str | None) -> str:
    return measured if published is None else f"{measured} [{published.replace('%', ' %')}]"


# ---- methods on streams, each under its own Hedge --------------------------------------------------------------------


@dataclass(frozen=True)
class HedgeResult(RowResult):
    """Result of one method on a stream."""

    @property
    def explained(self) -> str:
        return (
            "accuracy under Hedge's weights [published]: CTM, on each new task before it is learnt; LTM, on all tasks "
            "at the end. Deployed: CTM and LTM of the deployed policy (search.deploy). Best in hindsight: expert with "
            "the smallest loss, its CTM and LTM. Regret: total against this expert, and its bound. Kept: models and "
            "past tasks of one expert. Points needed: samples of a new task to reach the threshold, in the last tenth "
            "of the tasks"
        )

    @property
    def heading(self) -> str:
        return self.headings[0]

    @property
    def title(self) -> str:
        return f"{self.row.title}, {self.heading}"

    @property
    def ctm(self) -> float:
        """Mean over the rounds of the accuracy under each round's weights."""
        return self.curve("ctm")[-1][1]

    @property
    def ltm(self) -> float | None:
        """LTM after the last round, under its weights; None if it was not measured."""
        points = self.curve("ltm")
        return points[-1][1] if points else None

    def curve(self, metric: str) -> Points:
        """Points (round, value) of "ctm" (mean so far), "ltm", or "efficiency_points" (samples needed)."""
        name = "test_accuracy" if metric == "ctm" else metric
        points = [(r["round"], r["expected"][name]) for r in self.finished.hedge if name in r["expected"]]
        if metric != "ctm":
            return smoothed(points) if metric == "efficiency_points" else points
        sums, means = 0.0, []
        for count, (round, value) in enumerate(points, start=1):
            sums += value
            means.append((round, sums / count))
        return means

    def _late(self, metric: str) -> float | None:
        """Mean over the last tenth of the rounds that measured the metric; None if there are none."""
        values = [record["expected"][metric] for record in self.finished.hedge if metric in record["expected"]]
        late = values[-max(1, len(values) // 10) :]
        return sum(late) / len(late) if late else None

    def deployed(self) -> dict[str, dict[str, float | None]]:
        """CTM and LTM of each deployed policy. LTM: of the expert deployed in the last round; unknown for a mixture.

        Empty if the records are of a version without policies; a policy is left out if a round has no score of it.
        """
        hedge, trials = self.finished.hedge, self.finished.trials
        result: dict[str, dict[str, float | None]] = {}
        for policy in hedge[-1].get("deployed", {}):
            scores = [record.get("deployed", {}).get(policy) for record in hedge]
            accuracies = [score["accuracy"] for score in scores if score and score["accuracy"] is not None]
            if len(accuracies) == len(hedge):
                expert = scores[-1].get("expert")
                ltm = None if expert is None else final_value(trials[expert].records, "ltm")
                result[policy] = {"ctm": sum(accuracies) / len(hedge), "ltm": ltm}
        return result

    def values(self) -> dict[str, Any]:
        """All values of the table, unrounded."""
        last, trials = self.finished.hedge[-1], self.finished.trials
        ran = [trial for trial in trials if trial.records]
        labels = trial_labels(trials)
        best = trials[last["best"]]
        published = {metric: cells for metric, cells in self.row.published.items() if self.heading in cells}
        return {
            "method": self.heading,
            "ctm": self.ctm,
            "ltm": self.ltm,
            "published": {metric: cells[self.heading] for metric, cells in published.items()},
            "policy": getattr(self.finished.plan.search, "deploy", None),
            "deployed": self.deployed(),
            "experts": len(trials),
            "argmax": labels[last["leader"]],
            "argmax_weight": last["weights"][last["leader"]],
            "best": labels[last["best"]],
            "best_ctm": final_value(best.records, "ctm"),
            "best_ltm": final_value(best.records, "ltm"),
            "regret": last["regret"],
            "bound": last["bound"],
            "rounds": last["round"],
            "memory_bytes": final_value(best.records, "memory_bytes"),
            "memory_vectors": final_value(best.records, "memory_vectors"),
            "memory_tasks": final_value(best.records, "memory_tasks"),
            "points": self._late("efficiency_points"),
            "reached": self._late("efficiency_reached"),
            "dropped": sum(record["dropped"] for trial in ran for record in trial.records),
            "died": len(trials) - len(ran),
            "seconds": max(trial.records[-1]["seconds"] for trial in ran),
            "run": self.folder.name,
        }

    def rows(self) -> list[dict[str, str]]:
        v = self.values()
        row = {
            "stream": self._setting,
            "method": self.heading + (MARK if v["dropped"] else ""),
            "CTM": _with_published(percent(v["ctm"]), v["published"].get("ctm")),
            "LTM": _with_published(percent(v["ltm"]), v["published"].get("ltm")),
            **self._deployed_cell(v),
            "experts": str(v["experts"]),
            "argmax": f"{v['argmax']} ({percent(v['argmax_weight'])})",
            "best in hindsight": f"{v['best']}: {percent(v['best_ctm'])}, {percent(v['best_ltm'])}",
            "regret": f"{v['regret']:.2f} (≤ {v['bound']:.3g})",
            "kept": f"{show(v['memory_vectors'])} models, {v['memory_tasks']} tasks",
        }
        if v["points"] is not None:
            row["points needed"] = f"{v['points']:.0f} (reached: {percent(v['reached'], digits=0)})"
        return [row]

    @staticmethod
    def _deployed_cell(v: dict[str, Any]) -> dict[str, str]:
        scores = v["deployed"].get(v["policy"])
        return {"deployed": f"{v['policy']}: {percent(scores['ctm'])}, {percent(scores['ltm'])}"} if scores else {}

    def remarks(self) -> list[str]:
        v, title = self.values(), self.title
        notes = [f"{title}: data {self._data}, {v['rounds']} tasks; run {v['run']}", *self._changes]
        if sources := self.taken_from:
            runs = sorted({Path(run).parts[0] for run in sources.values()})
            notes.append(f"{title}: {len(sources)} experts were trained only once, in {', '.join(runs)}")
        if v["died"]:
            notes.append(f"{title}: {v['died']} experts failed before their first round")
        if v["dropped"]:
            notes.append(f"{MARK} {title}: {dropped_text(v['dropped'])}")
        return notes

    def as_dict(self) -> dict[str, Any]:
        return {**self._line, **self._origin, **self.values()}
