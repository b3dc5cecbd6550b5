"""Cost of reaching the targets: rounds, transmissions, and the factor relative to the cheapest experiment."""

from collections.abc import Sequence

import numpy as np

from hedgerow.platform.tracking.summary import first_to, target_heading, target_label
from hedgerow.reports.analysis.comparison import spread_text
from hedgerow.reports.analysis.seed_groups import SeedGroup
from hedgerow.reports.analysis.statistics import MeanStd
from hedgerow.reports.charts.html_table import HtmlTable, table
from hedgerow.searchspaces.results.trials import cost_text


def targets(groups: Sequence[SeedGroup]) -> list[HtmlTable]:
    """One table per target of any of the files."""
    goals = dict.fromkeys((target, group.first.target_metric) for group in groups for target in group.first.targets)
    return [_table(groups, target, metric) for target, metric in goals]


def _table(groups: Sequence[SeedGroup], target: float, metric: str) -> HtmlTable:
    means: list[tuple[float | None, float]] = []
    rows = []
    for group in groups:
        # Centralised runs transmit nothing, so they reach a target at no cost.
        histories = [[{"transmissions": 0.0, **record} for record in run.records] for run in group.runs]
        entries = [entry for records in histories if (entry := first_to(records, target, metric))]
        needed, rounds = ([entry[unit] for entry in entries] for unit in ("transmissions", "rounds"))
        spent = group.mean("transmissions")
        all_reached = len(entries) == len(group.runs)
        means.append((float(np.mean(needed)) if all_reached else None, spent))
        rows.append(
            {
                "experiment": group.label,
                "reached": f"{len(entries)} of {len(group.runs)}",
                "rounds": spread_text(MeanStd.of(rounds), "") if all_reached else f"{group.mean('rounds'):g}+",
                "transmissions": spread_text(MeanStd.of(needed), "") if all_reached else f"{spent:g}+",
            }
        )
    fewest = min((mean for mean, _ in means if mean), default=None)
    for row, (mean, spent) in zip(rows, means, strict=True):
        _, _, gain = cost_text(mean, spent, fewest).removesuffix(")").partition("(")
        row["gain"] = gain or "-"
    heading = target_heading(target_label(target, metric))
    return table(rows, f"To {heading} {metric.replace('_', ' ')}")
