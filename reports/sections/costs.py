"""Cost of experiments: transmitted bytes and seconds."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.runs.recorded_run import Run
from hedgerow.platform.runs.seed_groups import SeedGroup
from hedgerow.platform.ui.charts import bars, lines
from hedgerow.platform.ui.series import Series, mean_series
from hedgerow.reports.sections.curves import coloured

COUNTS = [
    Column("exchanges", unit="count"),
    Column("scalars_down", "numbers down", "count"),
    Column("scalars_up", "numbers up", "count"),
    Column("bytes_down"),
    Column("bytes_up"),
    Column("dropped", "left out", "count"),
]


def ledger(groups: Sequence[SeedGroup], shown: Sequence[SeedGroup]) -> list[Any]:
    """Bytes down and up, their cumulative sum by round, and all counts; empty if nothing was transmitted."""
    if not any(group.first.summary["scalars"] for group in groups):
        return []
    traffic = [_mean_by_round(g, [_sent(run) for run in g.runs], i) for i, g in coloured(shown)]
    bar_rows = [
        (g.label, {"down, to clients": _total(g, "bytes_down"), "up, to the server": _total(g, "bytes_up")})
        for g in shown
    ]
    figures = [
        bars("Total bytes", bar_rows, "bytes", "B"),
        lines("Bytes by round, down and up", traffic, "round", "bytes so far", "B"),
    ]
    rows = [
        {
            "experiment": group.label,
            "transmissions": group.mean("transmissions"),
            "transmissions per round": group.mean("transmissions") / group.mean("rounds"),
        }
        | {column.name: _total(group, column.name) for column in COUNTS}
        | {name: _spent(group, name) for name in group.first.summary["spent"]}
        for group in groups
    ]
    spent = [Column(name, unit="count") for group in groups for name in group.first.summary["spent"]]
    return [*(figure for figure in figures if figure), Table(rows, columns=[*COUNTS, *spent])]


def timing(groups: Sequence[SeedGroup], shown: Sequence[SeedGroup]) -> list[Any]:
    """Seconds by activity, seconds of each round, and the engine's plan."""
    parts = {group.label: _parts(group) for group in groups}
    bar_rows = [(group.label, parts[group.label]) for group in shown if parts[group.label]]
    steps = [_mean_by_round(g, [_steps(run) for run in g.runs], i) for i, g in coloured(shown)]
    figures = [
        bars("Where the seconds went", bar_rows, "seconds", "s") if bar_rows else None,
        lines("Seconds of a round", steps, "round", "seconds", "s"),
    ]
    rows, names = [], dict[str, None]()
    for group in groups:
        each = np.array([step for run in group.runs for step in _steps(run)])
        seconds = {"time": group.mean("seconds"), **parts[group.label]}
        seconds |= {"median round": float(np.median(each)), "slowest": float(each.max())}
        names |= dict.fromkeys(seconds)
        others = {"rounds/s": len(each) / max(float(each.sum()), 1e-9), "clients at once": _plan(group.first)}
        rows.append({"experiment": group.label, **seconds, **others})
    table = Table(rows, columns=[Column(name, unit="s") for name in names])
    return [*(figure for figure in figures if figure), table]


def _total(group: SeedGroup, key: str) -> float:
    """Total of a count over all rounds, mean over seeds."""
    return float(np.mean([sum(record.get(key, 0) for record in run.records) for run in group.runs]))


def _spent(group: SeedGroup, name: str) -> float:
    """A count that the algorithm itself reports, mean over seeds."""
    return float(np.mean([run.summary["spent"].get(name, 0) for run in group.runs]))


def _mean_by_round(group: SeedGroup, values: list[list[float]], index: int) -> Series:
    """Mean over seeds of a value per round, without a band. values: one list per run."""
    curves = [
        {record["round"]: (record["round"], value) for record, value in zip(run.records, each, strict=True)}
        for run, each in zip(group.runs, values, strict=True)
    ]
    return replace(mean_series(group.label, curves, index), spread=[])


def _sent(run: Run) -> list[float]:
    return list(accumulate(float(r.get("bytes_down", 0) + r.get("bytes_up", 0)) for r in run.records))


def _steps(run: Run) -> list[float]:
    return np.diff([0.0, *(record["seconds"] for record in run.records)]).tolist()


def _parts(group: SeedGroup) -> dict[str, float]:
    """Seconds by activity, if the records have them, mean over seeds."""
    records: list[dict[str, Any]] = [run.record for run in group.runs]
    parts: dict[str, float] = {}
    if all(record.get("clock") for record in records):
        parts = {name: float(np.mean([record["clock"][name] for record in records])) for name in records[0]["clock"]}
    if all("wall_seconds" in record for record in records):
        wall = float(np.mean([record["wall_seconds"] for record in records]))
        parts["around"] = max(0.0, wall - group.mean("seconds"))
    return parts


def _plan(run: Run) -> str:
    """Text of the engine's plan for the training step."""
    plans = run.record.get("plans", {})
    train_plan = next((plan for step, plan in plans.items() if step.startswith("train")), None)
    if not train_plan:
        return "-"
    compiled = ", compiled" if train_plan.get("compiled") else ""
    return "1 (loop)" if train_plan["mode"] == "loop" else f"{train_plan['chunk']} (vmap{compiled})"
