"""Cost of reaching the targets: rounds, transmissions, and the factor relative to the cheapest experiment."""

from collections.abc import Sequence
from typing import Any

from hedgerow.platform.common.numbers import MeanStd, cost_text, number, target_heading
from hedgerow.platform.common.table import Table
from hedgerow.platform.runs.seed_groups import SeedGroup
from hedgerow.platform.tracking.summary import first_to, target_label


def targets(groups: Sequence[SeedGroup]) -> list[Table]:
    """One table per target of any of the files."""
    goals = dict.fromkeys((target, group.first.target_metric) for group in groups for target in group.first.targets)
    return [_table(groups, target, metric) for target, metric in goals]


def _table(groups: Sequence[SeedGroup], target: float, metric: str) -> Table:
    means: list[float | None] = []
    rows: list[dict[str, Any]] = []
    for group in groups:
        # Centralised runs transmit nothing, so they reach a target at no cost.
        histories = [[{"transmissions": 0.0, **record} for record in run.records] for run in group.runs]
        entries = [entry for records in histories if (entry := first_to(records, target, metric))]
        row: dict[str, Any] = {"experiment": group.label, "reached": f"{len(entries)} of {len(group.runs)}"}
        all_reached = len(entries) == len(group.runs)
        for unit in ("rounds", "transmissions"):
            needed = [entry[unit] for entry in entries]
            row[unit] = MeanStd.of(needed) if all_reached else f"{number(group.mean(unit))}+"
        means.append(row["transmissions"].mean if all_reached else None)
        rows.append(row)
    fewest = min(filter(None, means), default=None)
    for row, mean, group in zip(rows, means, groups, strict=True):
        _, _, ratio = cost_text(mean, group.mean("transmissions"), fewest).removesuffix(")").partition("(")
        row["ratio"] = ratio or None
    heading = target_heading(target_label(target, metric))
    return Table(rows, f"To {heading} {metric.replace('_', ' ')}")
