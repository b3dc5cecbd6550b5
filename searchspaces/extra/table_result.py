"""Results of a table's rows next to the published numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hedgerow.platform.common.numbers import cost_text, name_of, number, percent, target_heading
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.formatting import dropped_warning
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.tracking.summary import final_value, first_to, reported, summarise, target_label
from hedgerow.searchspaces.extra.table_file import Cells, TableRow
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.results.trials import Trial, trial_labels

MARK = "†"
"""Marks cells of runs in which clients diverged."""

CHANGED = "*"
"""Marks rows that were run with other settings than in the source."""

Records = list[RoundRecord]


@dataclass(frozen=True)
class _Result:
    """Result of the search of a row. Rows on streams have one result per method. note: see `RowSearch.note`."""

    row: TableRow
    folder: RunFolder
    finished: FinishedSearch
    note: dict[str, Any]

    @property
    def title(self) -> str:
        """Prefix of the remarks."""
        return self.row.title

    def values(self) -> dict[str, Any]:
        """All values, unrounded."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Values and provenance, for JSON."""
        record = self.folder.record()
        origin = {key: record[key] for key in ("versions", "git_commit")}
        # Only the names of folders and of the program.
        command = " ".join(Path(part).name if Path(part).exists() else part for part in record["command"])
        note = {key: value for key, value in self.note.items() if key != "trainings"}
        return {**note, "run": self.folder.name, **origin, "command": command, **self.values()}

    @property
    def metric(self) -> str:
        return self.finished.spec.experiment.evaluation.target_metric

    @property
    def _setting(self) -> str:
        return f"{self.row.title} {CHANGED}" if self.note["changed"] else self.row.title

    def _origin(self, rounds: str) -> list[str]:
        """Remarks on data, rounds, run and changes."""
        section = self.finished.spec.experiment.task.data
        data = section.model_dump(mode="json", exclude_defaults=True)
        name = " ".join(str(data[key]) for key in ("name", "path") if key in data) or section.name
        changed = ", ".join(self.note["changed"])
        return [
            f"{self.title}: data {name}{rounds}; run {self.folder.name}",
            *([f"{CHANGED} {self.title}: changed from the source: {changed}"] if changed else []),
        ]


def with_published(measured: str, published: str | None) -> str:
    return measured if published is None else f"{measured} [{published.replace('%', ' %')}]"


# ---- sweeps over methods ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepResult(_Result):
    """Result of a row that ran as a sweep over its methods: cells by target and method."""

    @property
    def targets(self) -> list[float]:
        return self.finished.spec.experiment.evaluation.targets

    @property
    def explained(self) -> str:
        if not self.targets:
            return "test accuracy, or the one named, of each method's best configuration; final reported quantities"
        unit = "rounds" if self.row.unit == "rounds" else "transmissions, in FedAvg rounds,"
        return f"{unit} to the target: measured [published]; +: not reached"

    def best(self, heading: str) -> tuple[Trial, str] | None:
        """Best trial of a method and its label: fewest transmissions to the first target, then to the next targets,
        then best metric. None if the method did not run. The label is empty if there is only one trial."""
        trials = self.finished.trials
        candidates = [t for t in trials if self.note["headings"][int(t.name)] == heading and t.records]
        if not candidates:
            return None

        def cost(trial: Trial) -> tuple[float, ...]:
            firsts = [first_to(trial.records, target, self.metric) for target in self.targets]
            sign = 1 if "loss" in self.metric else -1
            values = [sign * r[self.metric] for r in trial.records if math.isfinite(r.get(self.metric, math.nan))]
            return (*(r[self.row.unit] if r else math.inf for r in firsts), min(values, default=math.inf))

        best = min(candidates, key=cost)
        return best, trial_labels(candidates)[candidates.index(best)] if len(candidates) > 1 else ""

    def costs(self, target: float | None) -> list[dict[str, Any]]:
        """Cost of each method that ran: transmissions to a target (or rounds, if the row counts these), None if it was
        not reached; and its cell. target: None if the row has none: cells are best accuracies.
        """
        costs: list[dict[str, Any]] = []
        reference, whose = None, next(iter(self.row.methods))
        metric = self.metric if "accuracy" in self.metric else "test_accuracy"
        for heading in self.row.methods:
            if not (best := self.best(heading)):
                continue
            trial, configuration = best
            summary = summarise(trial.records, [])
            first = None if target is None else first_to(trial.records, target, self.metric)
            needed = first[self.row.unit] if first else None
            reference = needed if heading == whose else reference
            accuracy = max((r[metric] for r in trial.records if metric in r), default=None)
            cell = percent(accuracy) if target is None else cost_text(needed, summary[self.row.unit], reference, whose)
            cost = {"heading": heading, "cell": cell + (MARK if summary["dropped"] else ""), "transmissions": needed}
            cost |= {key: summary[key] for key in ("rounds", "dropped", "seconds")}
            cost |= {"trial": trial.name, "status": trial.status, "configuration": configuration}
            costs.append(cost | {"best_accuracy": accuracy})
        return costs

    def rows(self) -> list[dict[str, str]]:
        """Rows for people: measured values, and published values in brackets."""
        rows, named = [], f" {name_of(self.metric)}" * ("accuracy" in self.metric.removeprefix("test_accuracy"))
        for target in self.targets or (None,):
            heading = "best" if target is None else target_heading(target_label(target, self.metric))
            cells = {cost["heading"]: cost["cell"] for cost in self.costs(target)}
            rows.append(self._as_row(heading + named, cells, self.row.published.get(target, {})))
        best = {heading: trial[0].records for heading in self.row.methods if (trial := self.best(heading))}
        more = after(best, self.row.after) | (devices(best) if self.targets else standing(best))
        published = self.row.published | {f"after {n} rounds": cells for n, cells in self.row.after.items()}
        return rows + [self._as_row(what, cells, published.get(what, {})) for what, cells in more.items()]

    def _as_row(self, target: str, cells: Cells, printed: Cells) -> dict[str, str]:
        both = {heading: with_published(cells.get(heading, "-"), printed.get(heading)) for heading in self.row.methods}
        return {"setting": self._setting, "target": target, **both}

    def remarks(self) -> list[str]:
        """Details of the run: data, rounds, changes, and name of the run."""
        title, costs = self.title, self.costs(self.targets[0] if self.targets else None)
        rounds = ", ".join(f"{cost['heading']} {cost['rounds']}" for cost in costs)
        notes = self._origin(f"; rounds run (of {self.finished.spec.experiment.rounds}): {rounds}")
        taken = self.note.get("taken_from", {})
        sources = {cost["heading"]: taken.get(str(int(cost["trial"]))) for cost in costs}
        notes += [f"{title}: {c['heading']}: {c['configuration']}" for c in costs if c["configuration"]]
        notes += [f"{title}: {heading}: trained once, in {run}" for heading, run in sources.items() if run]
        for cost in (cost for cost in costs if cost["status"] != "finished"):
            was = "was " * (cost["status"] == "interrupted")
            notes.append(f"{title}: {cost['heading']}: the run {was}{cost['status']} before its end")
        return notes + [
            f"{MARK} {title}, {c['heading']}: {dropped_warning(c['dropped'])}" for c in costs if c["dropped"]
        ]

    def values(self) -> dict[str, Any]:
        targets = {target_label(target, self.metric): self.costs(target) for target in self.targets}
        best = {cost["heading"]: cost["best_accuracy"] for cost in self.costs(None)}
        return {"unit": self.row.unit, "targets": targets, "best_accuracy": best}


# ---- comparisons without a target ------------------------------------------------------------------------------------


def standing(runs: dict[str, Records]) -> dict[str, Cells]:
    """Rows of a comparison: label -> method -> cell. runs: records of the best run of each method, by heading.

    Methods that transmit nothing are compared only at equal rounds. Equal traffic is the smallest traffic of all
    methods or, if some methods count their computations, as bilevel methods do, of these methods. A single method has
    only the quantities that it reports and counts.
    """
    ends = {heading: summarise(records, []) for heading, records in runs.items()}
    rows = after(runs, [min(end["rounds"] for end in ends.values())]) if len(runs) > 1 else {}
    sending = {heading: records for heading, records in runs.items() if ends[heading]["transmissions"]}
    if len(sending) > 1:
        counting = [heading for heading in sending if ends[heading]["spent"]] or list(sending)
        traffic = min(ends[heading]["transmissions"] for heading in counting)
        at = {heading: percent(_last(records, "transmissions", traffic)) for heading, records in sending.items()}
        rows[f"after {traffic:.4g} transmissions"] = at
    rows |= devices(runs)
    teachers = {h: percent(end["teacher_test_accuracy"]) for h, end in ends.items() if "teacher_test_accuracy" in end}
    rows |= {"teacher": teachers} if teachers else {}
    for name in dict.fromkeys(name for records in runs.values() for name in reported(records)):
        cells = {h: f"{end['report'][name]:.3g}" for h, end in ends.items() if name in end["report"]}
        rows[name_of(name)] = cells
    counts = {heading: end["spent"] for heading, end in ends.items() if end["spent"]}
    if counts:
        rows["exchanges"] = {heading: f"{end['exchanges']:,}" for heading, end in ends.items()}
    for name in dict.fromkeys(name for spent in counts.values() for name in spent):
        rows[name_of(name)] = {heading: f"{spent.get(name, 0):,.0f}" for heading, spent in counts.items()}
    return rows


def after(runs: dict[str, Records], rounds: Iterable[int]) -> dict[str, Cells]:
    """Rows of accuracies after given numbers of rounds, for the methods that ran this long."""
    rows = {
        f"after {number} rounds": {
            heading: percent(_last(records, "round", number))
            for heading, records in runs.items()
            if records[-1]["round"] >= number
        }
        for number in rounds
    }
    return {what: cells for what, cells in rows.items() if cells}


def devices(runs: dict[str, Records]) -> dict[str, Cells]:
    """Rows of the final accuracies of personal models: average, highest and lowest device."""
    ends = {heading: summarise(records, []) for heading, records in runs.items()}
    if not ends or not all("client_accuracy_lowest" in end for end in ends.values()):
        return {}
    return {
        f"{what} device, at the end": {heading: percent(end[f"client_accuracy{key}"]) for heading, end in ends.items()}
        for what, key in (("average", ""), ("highest", "_highest"), ("lowest", "_lowest"))
    }


def _last(records: Records, axis: str, most: float) -> float | None:
    """Last accuracy at `most` rounds or transmissions, or fewer."""
    return final_value([record for record in records if record[axis] <= most * 1.0001], "test_accuracy")


# ---- methods on streams, each under its own Hedge --------------------------------------------------------------------


@dataclass(frozen=True)
class HedgeResult(_Result):
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
        return self.note["headings"][0]

    @property
    def title(self) -> str:
        return f"{self.row.title}, {self.heading}"

    def _expected(self, metric: str) -> list[float]:
        """Values of a metric under the weights of each round that measured it."""
        return [record["expected"][metric] for record in self.finished.hedge if metric in record["expected"]]

    def _late(self, metric: str) -> float | None:
        """Mean over the last tenth of the rounds that measured the metric; None if there are none."""
        values = self._expected(metric)
        return _mean(values[-max(1, len(values) // 10) :])

    def deployed(self) -> dict[str, dict[str, float | None]]:
        """CTM and LTM of each deployed policy. LTM: of the expert deployed in the last round; unknown for a mixture.

        A policy is left out if a round has no score of it.
        """
        hedge, trials = self.finished.hedge, self.finished.trials
        result: dict[str, dict[str, float | None]] = {}
        for policy in hedge[-1].get("deployed", {}):
            scores = [record.get("deployed", {}).get(policy) for record in hedge]
            if all(score and score["accuracy"] is not None for score in scores):
                expert = scores[-1].get("expert")
                ltm = None if expert is None else final_value(trials[expert].records, "ltm")
                result[policy] = {"ctm": sum(score["accuracy"] for score in scores) / len(hedge), "ltm": ltm}
        return result

    def values(self) -> dict[str, Any]:
        last, trials = self.finished.hedge[-1], self.finished.trials
        ran = [trial for trial in trials if trial.records]
        labels, best, ltm = trial_labels(trials), trials[last["best"]].records, self._expected("ltm")
        published = {metric: cells for metric, cells in self.row.published.items() if self.heading in cells}
        return {
            "method": self.heading,
            "ctm": _mean(self._expected("test_accuracy")),
            "ltm": ltm[-1] if ltm else None,
            "published": {metric: cells[self.heading] for metric, cells in published.items()},
            "policy": getattr(self.finished.spec.search, "deploy", None),
            "deployed": self.deployed(),
            "experts": len(trials),
            "argmax": labels[max(range(len(labels)), key=last["next_weights"].__getitem__)],
            "argmax_weight": max(last["next_weights"]),
            "best": labels[last["best"]],
            **{f"best_{key}": final_value(best, key) for key in ("ctm", "ltm")},
            "regret": last["regret"],
            "bound": last["bound"],
            "rounds": last["round"],
            **{key: final_value(best, key) for key in ("memory_bytes", "memory_vectors", "memory_tasks")},
            "points": self._late("efficiency_points"),
            "reached": self._late("efficiency_reached"),
            "dropped": sum(record["dropped"] for trial in ran for record in trial.records),
            "died": len(trials) - len(ran),
            "seconds": max(trial.records[-1]["seconds"] for trial in ran),
        }

    def rows(self) -> list[dict[str, str]]:
        """A row for people: measured values, and published values in brackets."""
        v = self.values()
        row = {
            "stream": self._setting,
            "method": self.heading + (MARK if v["dropped"] else ""),
            "CTM": with_published(percent(v["ctm"]), v["published"].get("ctm")),
            "LTM": with_published(percent(v["ltm"]), v["published"].get("ltm")),
        }
        if scores := v["deployed"].get(v["policy"]):
            row["deployed"] = f"{v['policy']}: {percent(scores['ctm'])}, {percent(scores['ltm'])}"
        row |= {
            "experts": str(v["experts"]),
            "argmax": f"{v['argmax']} ({percent(v['argmax_weight'])})",
            "best in hindsight": f"{v['best']}: {percent(v['best_ctm'])}, {percent(v['best_ltm'])}",
            "regret": f"{v['regret']:.2f} (≤ {v['bound']:.3g})",
            "kept": f"{number(v['memory_vectors'])} models, {v['memory_tasks']} tasks",
        }
        if v["points"] is not None:
            row["points needed"] = f"{v['points']:.0f} (reached: {percent(v['reached'], digits=0)})"
        return [row]

    def remarks(self) -> list[str]:
        """Details of the run: data, tasks, changes, and name of the run."""
        v, title = self.values(), self.title
        notes = self._origin(f", {v['rounds']} tasks")
        if sources := self.note.get("taken_from"):
            runs = sorted({Path(run).parts[0] for run in sources.values()})
            notes.append(f"{title}: {len(sources)} experts were trained only once, in {', '.join(runs)}")
        if v["died"]:
            notes.append(f"{title}: {v['died']} experts failed before their first round")
        if v["dropped"]:
            notes.append(f"{MARK} {title}: {dropped_warning(v['dropped'])}")
        return notes


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


RowResult = SweepResult | HedgeResult


def read_result(row: TableRow, folder: RunFolder) -> RowResult:
    """Reads a result from the folder of a search."""
    kind = HedgeResult if row.is_stream else SweepResult
    return kind(row, folder, FinishedSearch.read(folder), folder.record()["table"])
