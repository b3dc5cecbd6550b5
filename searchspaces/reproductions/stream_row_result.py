"""A table about streams as it was run, beside the published numbers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hedgerow.platform.tracking.formatting import dropped_text, percent
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.ui.plots import draw_streams
from hedgerow.platform.ui.series import STREAM_CURVES, Points, smoothed
from hedgerow.searchspaces.reproductions.row_result import CHANGED, MARK
from hedgerow.searchspaces.reproductions.stream_row_search import StreamLine
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.trials import Record, final_value, show, trial_labels


@dataclass(frozen=True)
class StreamResult:
    """One method on a stream."""

    explained: ClassVar[str] = (
        "accuracy under Hedge's weights [published]: CTM, of each new task before it is learnt; LTM, of all tasks at "
        "the end. In hindsight: the expert with the least loss, its CTM and LTM. Regret: against it, in sum; its "
        "bound. Kept: models and past tasks, of one expert. Points needed: of a new task, to the threshold, in the "
        "last tenth of the tasks"
    )

    line: StreamLine
    heading: str
    folder: RunFolder
    finished: FinishedSearch
    changed: list[str]

    @classmethod
    def read(cls, line: StreamLine, heading: str, folder: RunFolder) -> "StreamResult":
        """From the folder of its search."""
        return cls(line, heading, folder, FinishedSearch.read(folder), folder.record()["table"]["changed"])

    @property
    def ctm(self) -> float:
        """The mean over the rounds of the accuracies' mean under that round's weights."""
        return self.curve("ctm")[-1][1]

    @property
    def ltm(self) -> float | None:
        """After the last round, under its weights."""
        points = self.curve("ltm")
        return points[-1][1] if points else None

    def curve(self, metric: str) -> Points:
        """(round, value) of "ctm", the mean so far, of "ltm", or of the samples needed, "efficiency_points"."""
        name = "test_accuracy" if metric == "ctm" else metric
        points = [(r["round"], r["expected"][name]) for r in self.finished.hedge if name in r["expected"]]
        if metric != "ctm":
            return smoothed(points) if metric == "efficiency_points" else points
        sums, found = 0.0, []
        for count, (round, value) in enumerate(points, start=1):
            sums += value
            found.append((round, sums / count))
        return found

    def _late(self, metric: str) -> float | None:
        """The mean over the last tenth of the rounds, where it was measured."""
        values = [record["expected"][metric] for record in self.finished.hedge if metric in record["expected"]]
        late = values[-max(1, len(values) // 10) :]
        return sum(late) / len(late) if late else None

    def values(self) -> dict[str, Any]:
        """Everything that the table says, unrounded."""
        last, trials = self.finished.hedge[-1], self.finished.trials
        ran = [trial for trial in trials if trial.records]
        labels = trial_labels(trials)
        best = trials[last["best"]]
        return {
            "method": self.heading,
            "ctm": self.ctm,
            "ltm": self.ltm,
            "published": self.line.published.get(self.heading, {}),
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
        """The same as a person reads it."""
        v = self.values()
        printed = v["published"]

        def beside(metric: str) -> str:
            return percent(v[metric]) + (f" [{printed[metric]}]" if metric in printed else "")

        row = {
            "stream": self.line.title + (f" {CHANGED}" if self.changed else ""),
            "method": self.heading + (MARK if v["dropped"] else ""),
            "CTM": beside("ctm"),
            "LTM": beside("ltm"),
            "experts": str(v["experts"]),
            "argmax": f"{v['argmax']} ({percent(v['argmax_weight'])})",
            "best in hindsight": f"{v['best']}: {percent(v['best_ctm'])}, {percent(v['best_ltm'])}",
            "regret": f"{v['regret']:.2f} (≤ {v['bound']:.3g})",
            "kept": f"{show(v['memory_vectors'])} models, {v['memory_tasks']} tasks",
        }
        if v["points"] is not None:
            row["points needed"] = f"{v['points']:.0f} (reached: {v['reached']:.0%})"
        return [row]

    def remarks(self) -> list[str]:
        """What was run."""
        v, experiment = self.values(), self.finished.plan.experiment
        data = experiment.task.data.model_dump(mode="json", exclude_defaults=True)
        source = " ".join(str(data[key]) for key in ("name", "path") if key in data) or experiment.task.data.name
        title = f"{self.line.title}, {self.heading}"
        notes = [f"{title}: data {source}, {v['rounds']} tasks; run {v['run']}"]
        if self.changed:
            notes.append(f"{CHANGED} {title}: changed from the source: {', '.join(self.changed)}")
        if taken := self.folder.record()["table"].get("taken_from"):
            runs = sorted({Path(run).parts[0] for run in taken.values()})
            notes.append(f"{title}: {len(taken)} experts were trained once, in {', '.join(runs)}")
        if v["died"]:
            notes.append(f"{title}: {v['died']} experts died before their first round")
        if v["dropped"]:
            notes.append(f"{MARK} {title}: {dropped_text(v['dropped'])}")
        return notes

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        record: Record = self.folder.record()
        return {
            "line": record["table"]["line"],
            "changed": self.changed,
            "taken_from": record["table"].get("taken_from", {}),
            "versions": record["versions"],
            "git_commit": record["git_commit"],
            **self.values(),
        }


def draw_results(results: list[StreamResult], folder: Path) -> list[Path]:
    """CTM and LTM of every method, a row of panels per stream; curves.png and .svg in `folder`."""
    streams: dict[str, dict[str, dict[str, Points]]] = {}
    for result in results:
        curves = {key: result.curve(key) for key in STREAM_CURVES}
        streams.setdefault(result.line.title, {})[result.heading] = curves
    return draw_streams(streams, folder / "curves")
