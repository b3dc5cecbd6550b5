"""Cost of experiments: transmitted bytes and seconds."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from hedgerow.platform.tracking.formatting import size_text
from hedgerow.platform.ui.series import Series, mean_series
from hedgerow.reports.analysis.run_reader import Run
from hedgerow.reports.analysis.seed_groups import SeedGroup
from hedgerow.reports.charts.charts import bars, lines
from hedgerow.reports.charts.html_table import seconds_text, table
from hedgerow.reports.sections.curves import coloured


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
        bars("Total bytes", bar_rows, "bytes", size_text),
        lines("Bytes by round, down and up", traffic, "round", "bytes so far"),
    ]
    rows = [
        {
            "experiment": group.label,
            "transmissions": f"{group.mean('transmissions'):.5g}",
            "per round": f"{group.mean('transmissions') / group.mean('rounds'):.3g}",
            "exchanges": f"{_total(group, 'exchanges'):,.0f}",
            "numbers down": f"{_total(group, 'scalars_down'):,.0f}",
            "numbers up": f"{_total(group, 'scalars_up'):,.0f}",
            "bytes down": size_text(_total(group, "bytes_down")),
            "bytes up": size_text(_total(group, "bytes_up")),
            "left out": f"{_total(group, 'dropped'):g}",
        }
        | {name.replace("_", " "): f"{_spent(group, name):,.0f}" for name in group.first.summary["spent"]}
        for group in groups
    ]
    return [*(figure for figure in figures if figure), table(rows)]


def timing(groups: Sequence[SeedGroup], shown: Sequence[SeedGroup]) -> list[Any]:
    """Seconds by activity, seconds of each round, and the engine's plan."""
    parts = {group.label: _parts(group) for group in groups}
    bar_rows = [(group.label, parts[group.label]) for group in shown if parts[group.label]]
    steps = [_mean_by_round(g, [_steps(run) for run in g.runs], i) for i, g in coloured(shown)]
    figures = [
        bars("Where the seconds went", bar_rows, "seconds", seconds_text) if bar_rows else None,
        lines("Seconds of a round", steps, "round", "seconds"),
    ]
    rows = []
    for group in groups:
        each = np.array([step for run in group.runs for step in _steps(run)])
        row = {"experiment": group.label, "rounds": seconds_text(group.mean("seconds"))}
        row |= {name: seconds_text(value) for name, value in parts[group.label].items()}
        rows.append(
            row
            | {
                "median round": seconds_text(float(np.median(each))),
                "slowest": seconds_text(float(each.max())),
                "rounds/s": f"{len(each) / max(float(each.sum()), 1e-9):.3g}",
                "clients at once": _plan(group.first),
            }
        )
    return [*(figure for figure in figures if figure), table(rows)]


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
