"""What it took to reach the targets: rounds, transmissions, and the gain over the cheapest, as theses print them."""

from collections.abc import Sequence

import numpy as np

from hedgerow.platform.tracking.summary import first_to, target_heading, target_label
from hedgerow.reports.analysis.comparison import spread_text
from hedgerow.reports.analysis.seed_groups import Group
from hedgerow.reports.analysis.statistics import Spread
from hedgerow.reports.charts.html_table import Table, table
from hedgerow.searchspaces.results.trials import cost_text


def targets(groups: Sequence[Group]) -> list[Table]:
    """A table for each target that any of their files asks for."""
    wanted = dict.fromkeys((target, group.first.target_metric) for group in groups for target in group.first.targets)
    return [_table(groups, target, metric) for target, metric in wanted]


def _table(groups: Sequence[Group], target: float, metric: str) -> Table:
    means: list[tuple[float | None, float]] = []
    rows = []
    for group in groups:
        # What transmits nothing has reached it with none.
        counted = [[{"transmissions": 0.0, **record} for record in run.records] for run in group.runs]
        reached = [entry for records in counted if (entry := first_to(records, target, metric))]
        needed, rounds = ([entry[unit] for entry in reached] for unit in ("transmissions", "rounds"))
        spent = group.mean("transmissions")
        everybody = len(reached) == len(group.runs)
        means.append((float(np.mean(needed)) if everybody else None, spent))
        rows.append(
            {
                "experiment": group.label,
                "reached": f"{len(reached)} of {len(group.runs)}",
                "rounds": spread_text(Spread.of(rounds), "") if everybody else f"{group.mean('rounds'):g}+",
                "transmissions": spread_text(Spread.of(needed), "") if everybody else f"{spent:g}+",
            }
        )
    fewest = min((mean for mean, _ in means if mean), default=None)
    for row, (mean, spent) in zip(rows, means, strict=True):
        told = cost_text(mean, spent, fewest)
        row["gain"] = told[told.index("(") + 1 : -1] if told.endswith(")") else "-"
    heading = target_heading(target_label(target, metric))
    return table(rows, f"To {heading} {metric.replace('_', ' ')}")
