"""Curves of experiments: lines are means over seeds, bands are one standard deviation."""

from collections.abc import Sequence

from hedgerow.platform.config.model_selection import uses_test_samples
from hedgerow.platform.runs.seed_groups import SeedGroup
from hedgerow.platform.tracking.summary import main_metric, measured, reported
from hedgerow.platform.ui.charts import Chart
from hedgerow.platform.ui.plots import metric_chart, staleness_chart
from hedgerow.platform.ui.plotting import BLACK, COLOURS, colour_places
from hedgerow.platform.ui.series import DRAWN, STREAM_CURVES, axes_of, drawn_metric

SHOWN = 7
"""Maximum number of experiments with a line of their own."""


def coloured(groups: Sequence[SeedGroup]) -> list[tuple[int, SeedGroup]]:
    """The experiments with their colours, at most SHOWN of them: each method has the same colour in every figure."""
    return list(zip(colour_places(group.label for group in groups), groups, strict=True))


def coloured_learners(learners: Sequence[SeedGroup]) -> list[tuple[int, SeedGroup]]:
    """The Hedge searches: all are thick and black, with different dashes."""
    return [(BLACK + i * len(COLOURS), learner) for i, learner in enumerate(learners)]


def curves(groups: Sequence[SeedGroup], learners: Sequence[SeedGroup] = ()) -> list[Chart]:
    """Curves of all metrics that these experiments have. learners: results of Hedge searches."""
    numbered = [*coloured_learners(learners), *coloured(groups)]
    runs = {group.label: [run.records for run in group.runs] for _, group in numbered}
    places = {group.label: place for place, group in numbered}
    if all(group.first.is_stream for group in groups):
        charts = [metric_chart(key, runs, places) for key in STREAM_CURVES]
        return [chart for chart in charts if chart]

    def chart(key: str, by: str = "round") -> Chart | None:
        targets = sorted({t for group in groups for t in group.first.targets if group.first.target_metric == key})
        return metric_chart(key, runs, places, by, targets)

    records = [record for group in groups for run in group.runs for record in run.records]
    main = drawn_metric(main_metric(records), (run.records for group in groups for run in group.runs))
    keys = dict.fromkeys([main, *DRAWN, *measured(records), *reported(records)])
    # The scores of the last round alone are no curve.
    only_last = uses_test_samples if main.startswith("validation_") else lambda key: False
    first, *rest = [key for key in keys if key not in STREAM_CURVES and not only_last(key)]
    axes = axes_of(run.records for group in groups for run in group.runs)
    charts = [*(chart(first, by) for by in axes), *(chart(key) for key in rest)]
    for index, group in coloured(groups):
        charts.append(staleness_chart(group.label, [record for run in group.runs for record in run.records], index))
    return [chart for chart in charts if chart]
