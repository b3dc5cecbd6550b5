"""Curves of experiments: lines are means over seeds, bands are one standard deviation."""

from collections.abc import Iterable, Sequence

from hedgerow.platform.tracking.summary import main_metric, measured, reported
from hedgerow.platform.ui.plotting import colour_places
from hedgerow.platform.ui.series import (
    AXES,
    METRIC_LABELS,
    STREAM_CURVES,
    Series,
    axes_of,
    curve,
    is_simulated,
    mean_series,
    metric_label,
    staleness_counts,
    traffic,
)
from hedgerow.reports.analysis.comparison import is_share
from hedgerow.reports.analysis.seed_groups import SeedGroup
from hedgerow.reports.charts.charts import Chart, histogram, lines

SHOWN = 7
"""Maximum number of experiments with a line of their own. The eighth and later colours are for Hedge."""


def coloured(groups: Sequence[SeedGroup]) -> list[tuple[int, SeedGroup]]:
    """The experiments with their colours, at most SHOWN of them: each method has the same colour in every figure."""
    return list(zip(colour_places(group.label for group in groups), groups, strict=True))


def curves(groups: Sequence[SeedGroup], learners: Sequence[SeedGroup] = ()) -> list[Chart]:
    """Curves of all metrics that these experiments have. learners: results of Hedge searches."""
    numbered = [*enumerate(learners, SHOWN), *coloured(groups)]
    if all(group.first.is_stream for group in groups):
        return _charts(_by_task(numbered, key) for key in STREAM_CURVES)

    def chart(key: str, by: str = "round") -> Chart | None:
        label, share = metric_label(key), is_share(key)
        # A run that transmits nothing has no curve by traffic, and one without simulation none by time.
        has_axis = {"traffic": lambda records: traffic(records)[-1], "time": is_simulated}.get(by, bool)
        selection = [(i, group) for i, group in numbered if has_axis(group.first.records)]
        targets = sorted({t for group in groups for t in group.first.targets if group.first.target_metric == key})
        title = f"{label} by {'simulated seconds' if by == 'time' else by}".capitalize()
        return lines(title, [_series(*one, key, by) for one in selection], AXES[by], label, share, targets, late=share)

    records = [record for group in groups for run in group.runs for record in run.records]
    keys = dict.fromkeys([f"test_{main_metric(records)}", *METRIC_LABELS, *measured(records), *reported(records)])
    first, *rest = [key for key in keys if key not in STREAM_CURVES]
    axes = axes_of(run.records for group in groups for run in group.runs)
    return _charts([*(chart(first, by) for by in axes), *(chart(key) for key in rest), *_staleness(groups)])


def _staleness(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Histogram of the staleness of all updates of each experiment with an asynchronous schedule, of its first seed."""
    return [
        histogram(
            f"Staleness of updates: {group.label}",
            [tau - 0.5 for tau in range(len(counts) + 1)],
            [(group.label, counts)],
            "staleness (server steps)",
            "updates",
            index=index,
            whole=True,
        )
        for index, group in coloured(groups)
        if (counts := staleness_counts(group.first.records))
    ]


def _by_task(numbered: Sequence[tuple[int, SeedGroup]], key: str) -> Chart | None:
    label = STREAM_CURVES[key]
    return lines(label[0].upper() + label[1:], [_series(*one, key) for one in numbered], "task", label, is_share(key))


def _series(index: int, group: SeedGroup, key: str, by: str = "round") -> Series:
    runs = [curve(run.records, key, by) for run in group.runs]
    return mean_series(group.label, runs, index, strong=index >= SHOWN)


def _charts(found: Iterable[Chart | None]) -> list[Chart]:
    return [chart for chart in found if chart is not None]
