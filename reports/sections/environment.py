"""Where the numbers come from: who owns which samples, and what they were computed with."""

import json
from typing import Any

import numpy as np

from hedgerow.reports.analysis.run_reader import Material, Run, Search
from hedgerow.reports.charts.charts import heat, histogram

SHOWN = 3
"""Partitions, at most."""


def partitions(material: Material) -> tuple[list[str], list[Any]]:
    """Sentences and pictures of the partitions; of one that every seed draws anew, the first."""
    found: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for one in material.recorded:
        if told := one.folder.partition():
            found.setdefault(json.dumps(_task(one), sort_keys=True), (one.folder.name, _task(one)[1]["kind"], told))
    texts, parts = [], []
    for name, kind, told in list(found.values())[:SHOWN]:
        whose = f" ({name})" if len(found) > 1 else ""
        sizes, counts = np.array(told["sizes"]), told["counts"]
        who = "task" if kind == "stream" else "client"
        texts.append(
            f"{told['clients']:,} {who}s own {told['samples']:,} samples: between {sizes.min()} and {sizes.max()} "
            f"each, {float(np.median(sizes)):g} in the median{whose}."
        )
        of_all = f"The first {len(counts)} of {told['clients']:,}." if len(counts) < told["clients"] else ""
        parts.append(heat(f"Samples by {who} and class{whose}", counts, told["class_names"], who, of_all))
        width = max(1, -(-int(np.ptp(sizes) + 1) // 20))
        edges = np.arange(sizes.min() - 0.5, sizes.max() + width, width)
        # Of many clients the record has quantiles.
        many = np.histogram(sizes, edges)[0] * (told["clients"] / len(sizes))
        title = f"Samples per {who}{whose}"
        parts.append(histogram(title, edges.tolist(), [(f"{who}s", many.tolist())], "samples", f"{who}s", whole=True))
    if len({run.seed for run in material.runs}) > 1 and texts:
        texts.append("Every seed draws a partition of its own; the first run's is shown.")
    if len(found) > SHOWN:
        texts.append(f"The first {SHOWN} of {len(found)} partitions.")
    return texts, parts


def _task(one: Run | Search) -> Any:
    """What decides the partition, but for the seed."""
    task = one.values["task"] if isinstance(one, Run) else one.finished.plan.values["task"]
    known = one.record.get("data") or {"drawn": True}
    data, partition = known.get("dataset", task["data"]), None if known["drawn"] else known["partition"]
    return data, task["partition"], task.get("public"), partition


def environment(material: Material) -> tuple[list[str], list[dict[str, str]], list[str]]:
    """The versions, in words; a row for each run and search; and the commands that began them."""
    every = material.recorded
    versions: dict[str, list[str]] = {}
    rows, commands = [], []
    for one in every:
        record = one.record
        told = dict(record.get("versions", {}))
        machine = told.pop("machine", "")
        sentence = ", ".join(f"{name} {value}" for name, value in told.items()) + (f"; {machine}" if machine else "")
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
    return texts, rows, [command for command in dict.fromkeys(commands) if command]


def _time(stamp: Any) -> str:
    return str(stamp or "-").replace("T", " ")[:19]
