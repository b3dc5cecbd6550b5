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
    rows: list[dict[str, Any]] = []
    means: list[tuple[float, bool]] = []
    """Mean transmissions of each experiment, and whether every seed reached the target."""
    for group in groups:
        # Centralised runs transmit nothing, so they reach a target at no cost.
        histories = [[{"transmissions": 0.0, **record} for record in run.records] for run in group.runs]
        firsts = [first_to(records, target, metric) for records in histories]
        # A seed that did not reach the target needs more than it spent: the mean is a lower limit.
        ends = [{"rounds": last["round"], "transmissions": last["transmissions"]} for *_, last in histories]
        costs = [first or end for first, end in zip(firsts, ends, strict=True)]
        row: dict[str, Any] = {
            "experiment": group.label,
            "reached": f"{len(firsts) - firsts.count(None)} of {len(firsts)}",
        }
        for unit in ("rounds", "transmissions"):
            spread = MeanStd.of([cost[unit] for cost in costs])
            row[unit] = spread if None not in firsts else f"{number(spread.mean)}+"
        means.append((spread.mean, None not in firsts))
        # Of runs without the metric, nothing is known.
        measured = any(metric in record for records in histories for record in records)
        rows.append(row if measured else dict.fromkeys(row) | {"experiment": group.label})
    fewest = min((mean for mean, all_reached in means if mean and all_reached), default=None)
    for row, (mean, all_reached) in zip(rows, means, strict=True):
        _, _, ratio = cost_text(mean if all_reached else None, mean, fewest).removesuffix(")").partition("(")
        row["ratio"] = ratio if row["reached"] and ratio else None
    heading = target_heading(target_label(target, metric))
    return Table(rows, f"To {heading} {metric.replace('_', ' ')}")
