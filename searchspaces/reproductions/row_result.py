"""A table as it was run, beside the published numbers."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from hedgerow.platform.tracking.formatting import dropped_text, percent
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import first_to, summarise, target_heading, target_label
from hedgerow.platform.ui.plots import Histograms
from hedgerow.searchspaces.reproductions.published import Line, Table
from hedgerow.searchspaces.reproductions.standing import after, devices, standing
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.trials import Trial, cost_text, markdown_table, trial_labels

MARK = "†"
"""At cells of runs in which clients diverged."""

CHANGED = "*"
"""At lines that were not run as the source has them."""


@dataclass(frozen=True)
class Cell:
    """What one method needed for one target.

    transmissions: in FedAvg rounds, or in rounds where the line counts these; None where the target was not reached
    within `spent`. reference: those of the line's first method. best_accuracy: of the line's metric, where that is an
    accuracy. configuration: the one that is shown, of those that ran. dropped: answers left out.
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
        """As a person reads it: what the target took, or, where there is none, the best accuracy."""
        cost = cost_text(self.transmissions, self.spent, self.reference)
        return (cost if targeted else percent(self.best_accuracy)) + (MARK if self.dropped else "")


class Result(Protocol):
    """What was run of a line, as a table shows it."""

    @property
    def explained(self) -> str:
        """What the cells are."""
        ...

    @property
    def line(self) -> Any: ...
    def rows(self) -> list[dict[str, str]]: ...
    def remarks(self) -> list[str]: ...
    def as_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class LineResult:
    """A line that was run: its cells by target and method."""

    line: Line
    folder: RunFolder
    finished: FinishedSearch
    headings: list[str]
    changed: list[str]
    grid: bool

    @classmethod
    def read(cls, line: Line, folder: RunFolder) -> "LineResult":
        """From the folder of its search."""
        note = folder.record()["table"]
        return cls(line, folder, FinishedSearch.read(folder), note["headings"], note["changed"], note["grid"])

    @property
    def targets(self) -> list[float]:
        return self.finished.plan.experiment.evaluation.targets

    @property
    def metric(self) -> str:
        return self.finished.plan.experiment.evaluation.target_metric

    @property
    def explained(self) -> str:
        if not self.targets:
            return "test accuracy of each method's best configuration; what it reports and counts, at its end"
        unit = "rounds" if self.line.unit == "rounds" else "transmissions, in FedAvg rounds,"
        return f"{unit} to the target: measured (against the first method) [published]; + not reached"

    @property
    def _setting(self) -> str:
        return f"{self.line.title} {CHANGED}" if self.changed else self.line.title

    def best(self, heading: str) -> tuple[Trial, str] | None:
        """The trial of a method that reached the first target with the fewest transmissions, then the next, then the
        one with the best metric; and what sets it apart. None where it did not run."""
        trials = self.finished.trials
        mine = [t for t in trials if self.headings[int(t.name)] == heading and t.records]
        if not mine:
            return None

        def cost(trial: Trial) -> tuple[float, ...]:
            reached = [first_to(trial.records, target, self.metric) for target in self.targets]
            sign = 1 if "loss" in self.metric else -1
            seen = [sign * r[self.metric] for r in trial.records if math.isfinite(r.get(self.metric, math.nan))]
            return (*(r[self.line.unit] if r else math.inf for r in reached), min(seen, default=math.inf))

        labels = dict(zip((t.name for t in mine), trial_labels(mine), strict=True))
        best = min(mine, key=cost)
        return best, labels[best.name] if len(mine) > 1 else ""

    @property
    def taken_from(self) -> dict[str, str]:
        """By the number of a trial: the run of another row that it continued from, as `tables.sharing` found it."""
        return self.folder.record()["table"].get("taken_from", {})

    def histograms(self, heading: str) -> Histograms:
        """Those of a method's best configuration, as `platform.figures` draws them."""
        expert = self.expert(heading)
        return {} if expert is None else expert.record().get("histograms", {})

    def cells(self, target: float | None) -> list[Cell]:
        """One per method that ran. target: None where the line has none: then the accuracies count."""
        found: list[Cell] = []
        reference = None
        counted = self.metric if "accuracy" in self.metric else "test_accuracy"
        for heading in self.line.methods:
            if not (best := self.best(heading)):
                continue
            trial, configuration = best
            summary = summarise(trial.records, [])
            accuracy = max((r[counted] for r in trial.records if counted in r), default=None)
            reached = None if target is None else first_to(trial.records, target, self.metric)
            needed = reached[self.line.unit] if reached else None
            if heading == next(iter(self.line.methods)):
                reference = needed
            spent, rounds = summary[self.line.unit], summary["rounds"]
            dropped, seconds = summary["dropped"], summary["seconds"]
            status = trial.status
            found.append(
                Cell(heading, needed, spent, reference, accuracy, configuration, status, rounds, dropped, seconds)
            )
        return found

    def rows(self) -> list[dict[str, str]]:
        """As a person reads them: what was measured, and in brackets what was published."""
        rows = []
        targets: list[float | None] = [*self.targets]
        for target in targets or [None]:
            heading = "best" if target is None else target_heading(target_label(target, self.metric))
            cells = {cell.heading: cell.text(target is not None) for cell in self.cells(target)}
            printed = self.line.published.get(target, {})
            row = {"setting": self._setting, "target": heading}
            for method in self.line.methods:
                row[method] = _beside(cells.get(method, "-"), printed.get(method))
            rows.append(row)
        return rows + self._told()

    def _told(self) -> list[dict[str, str]]:
        """What else there is to compare."""
        best = {heading: trial[0].records for heading in self.line.methods if (trial := self.best(heading))}
        found = after(best, self.line.after) | (devices(best) if self.targets else standing(best)) | self._studied
        printed = self.line.published | {f"after {n} rounds": cells for n, cells in self.line.after.items()}
        return [
            {"setting": self._setting, "target": what}
            | {h: _beside(cells.get(h, "-"), printed.get(what, {}).get(h)) for h in self.line.methods}
            for what, cells in found.items()
        ]

    @cached_property
    def _studied(self) -> dict[str, dict[str, str]]:
        return self.line.studies(self.experts) if self.line.studies else {}

    @property
    def experts(self) -> dict[str, RunFolder]:
        """The folders of the methods' best configurations."""
        return {heading: expert for heading in self.line.methods if (expert := self.expert(heading))}

    def expert(self, heading: str) -> RunFolder | None:
        """The folder of a method's best configuration."""
        best = self.best(heading)
        return None if best is None else RunFolder(self.folder.path / "experts" / best[0].name)

    def remarks(self) -> list[str]:
        """What was run: data, rounds, changes, and where it lies."""
        experiment, title = self.finished.plan.experiment, self.line.title
        data = experiment.task.data.model_dump(mode="json", exclude_defaults=True)
        source = " ".join(str(data[key]) for key in ("name", "path") if key in data) or experiment.task.data.name
        cells = self.cells(self.targets[0] if self.targets else None)
        told = ", ".join(f"{cell.heading} {cell.rounds}" for cell in cells)
        notes = [f"{title}: data {source}; rounds run (of {experiment.rounds}): {told}; run {self.folder.name}"]
        if self.changed:
            notes.append(f"{CHANGED} {title}: changed from the source: {', '.join(self.changed)}")
        notes += [f"{title}: {c.heading}: {c.configuration}" for c in cells if c.configuration]
        taken = {heading: self.taken_from.get(str(int(run.path.name))) for heading, run in self.experts.items()}
        notes += [f"{title}: {heading}: trained once, as {run}" for heading, run in taken.items() if run]
        notes += [f"{title}: {c.heading}: the run {c.status} before its end" for c in cells if c.status != "finished"]
        return notes + [f"{MARK} {title}, {c.heading}: {dropped_text(c.dropped)}" for c in cells if c.dropped]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        record = self.folder.record()
        return {
            "line": record["table"]["line"],
            "changed": self.changed,
            "grid": self.grid,
            "taken_from": self.taken_from,
            "versions": record["versions"],
            "git_commit": record["git_commit"],
            # Of folders, and of the program, only the names.
            "command": " ".join(Path(part).name if Path(part).exists() else part for part in record["command"]),
            "unit": self.line.unit,
            "targets": {
                target_label(target, self.metric): {
                    "measured": [asdict(cell) for cell in self.cells(target)],
                    "published": self.line.published.get(target, {}),
                }
                for target in self.targets
            },
            "best_accuracy": {cell.heading: cell.best_accuracy for cell in self.cells(None)},
            "standing": {row["target"]: row for row in self._told()},
        }


def _beside(measured: str, published: str | None) -> str:
    return measured if published is None else f"{measured} [{published}]"


def all_remarks(results: Sequence[Result]) -> list[str]:
    """Those of every line, then what the source leaves open, once."""
    found = [remark for result in results for remark in result.remarks()]
    return found + list(dict.fromkeys(result.line.remark for result in results if result.line.remark))


def to_markdown(table: Table, results: Sequence[Result]) -> str:
    """The table and what stands below it."""
    rows = [row for result in results for row in result.rows()]
    remarks = "".join(f"- {remark}\n" for remark in all_remarks(results))
    return f"# {table.name}: {table.title}\n\n{markdown_table(rows)}\n{results[0].explained}\n\n{remarks}"


def as_document(table: Table, results: Sequence[Result]) -> dict[str, Any]:
    """Everything, for JSON."""
    return {"table": table.name, "title": table.title, "lines": [result.as_dict() for result in results]}


def write(table: Table, results: Sequence[Result], folder: Path) -> None:
    """table.md and table.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(to_markdown(table, results), encoding="utf-8")
    (folder / "table.json").write_text(json.dumps(as_document(table, results), indent=2) + "\n")
