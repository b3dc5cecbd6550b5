"""Origin of the numbers: the partition of the samples, versions, commits and commands."""

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from hedgerow.platform.common.numbers import number
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.ui.charts import heat, histogram
from hedgerow.platform.ui.series import integer_bins
from hedgerow.reports.sections.report_data import ReportData

if TYPE_CHECKING:
    from hedgerow.searchspaces.results.finished_search import FinishedSearch

SHOWN = 3
"""Maximum number of partitions that are drawn."""


def partitions(data: ReportData) -> tuple[list[str], list[Any]]:
    """Sentences and charts of the partitions; if every seed draws its own, only the first seed's."""
    tasks: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for one in data.recorded:
        if summary := one.folder.partition():
            tasks.setdefault(json.dumps(_task(one), sort_keys=True), (one.folder.name, _task(one)[1]["kind"], summary))
    texts, parts = [], []
    for name, kind, summary in list(tasks.values())[:SHOWN]:
        whose = f" ({name})" if len(tasks) > 1 else ""
        sizes, counts = np.array(summary["sizes"]), summary["counts"]
        who = "task" if kind == "stream" else "client"
        texts.append(
            f"{summary['clients']:,} {who}s own {summary['samples']:,} samples: between {sizes.min()} and "
            f"{sizes.max()} each, median {number(float(np.median(sizes)))}{whose}."
        )
        of_all = f"The first {len(counts)} of {summary['clients']:,}." if len(counts) < summary["clients"] else ""
        if counts:
            parts.append(heat(f"Samples by {who} and class{whose}", counts, summary["class_names"], who, note=of_all))
        edges = integer_bins(sizes, 20)
        # For many clients, the record has quantiles instead of all sizes.
        many = np.histogram(sizes, edges)[0] * (summary["clients"] / len(sizes))
        title = f"Samples per {who}{whose}"
        parts.append(histogram(title, edges.tolist(), {f"{who}s": many.tolist()}, "samples", f"{who}s", whole=True))
    if len({run.seed for run in data.runs}) > 1 and texts:
        texts.append("Every seed draws its own partition; the partition of the first run is shown.")
    if len(tasks) > SHOWN:
        texts.append(f"The first {SHOWN} of {len(tasks)} partitions.")
    return texts, parts


def _task(one: "Run | FinishedSearch") -> Any:
    """Settings that determine the partition, except the seed."""
    task = one.values["task"] if isinstance(one, Run) else one.spec.values["task"]
    record = one.record.get("data") or {"drawn": True}
    data, partition = record.get("dataset", task["data"]), None if record["drawn"] else record["partition"]
    return data, task["partition"], task.get("public"), partition


def environment(data: ReportData) -> tuple[list[dict[str, str]], list[str], list[str]]:
    """One row per run and search, sentences about the versions, and the commands that started them."""
    every = data.recorded
    versions: dict[str, list[str]] = {}
    rows, commands = [], []
    for one in every:
        record = one.record
        software = dict(record.get("versions", {}))
        machine = software.pop("machine", "")
        sentence = ", ".join(f"{name} {value}" for name, value in software.items()) + (
            f"; {machine}" if machine else ""
        )
        versions.setdefault(sentence, []).append(one.folder.name)
        commit = str(record.get("git_commit") or "-")
        rows.append(
            {
                "run": one.folder.name,
                "begun": _time(record.get("created")),
                "ended": _time(record.get("finished")),
                "status": str(record.get("status", "-")),
                "commit": commit[:12] + ("-dirty" if commit.endswith("-dirty") else ""),
            }
        )
        commands.append(" ".join(map(str, record.get("command", []))))
    texts = [
        f"{sentence}." if len(versions) == 1 else f"{', '.join(names)}: {sentence}."
        for sentence, names in versions.items()
        if sentence
    ]
    return rows, texts, [command for command in dict.fromkeys(commands) if command]


def _time(stamp: Any) -> str:
    return str(stamp or "-").replace("T", " ")[:19]
