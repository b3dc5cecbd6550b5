"""Figures of one run or of several: curves and histograms."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.common.numbers import unit_of
from hedgerow.platform.common.table import Table
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.summary import main_metric, reported
from hedgerow.platform.ui.charts import Chart, figure, heat, histogram, lines
from hedgerow.platform.ui.plotting import colour_places, new_figure, save
from hedgerow.platform.ui.series import (
    AXES,
    STREAM_CURVES,
    axes_of,
    curve,
    drawn_metric,
    is_simulated,
    mean_series,
    metric_label,
    of_stream,
    staleness_counts,
    traffic,
)

Runs = Mapping[str, Sequence[list[RoundRecord]]]
"""Records of experiments by label, one list for each seed."""


def metric_chart(
    key: str,
    runs: Runs,
    places: Mapping[str, int],
    by: str = "round",
    targets: Sequence[float] = (),
) -> Chart | None:
    """Chart of a metric: lines are means over the seeds, bands are one standard deviation; None if no run has it.

    places: place of each label's colour. by: a key of AXES.
    """
    # A run that transmits nothing has no curve by traffic, and one without simulation none by time.
    has_axis: Callable[[list[RoundRecord]], Any] = {
        "traffic": lambda records: traffic(records)[-1],
        "time": is_simulated,
    }.get(by, bool)
    series = [
        mean_series(label, [curve(records, key, by) for records in seeds], places[label])
        for label, seeds in runs.items()
        if all(map(has_axis, seeds))
    ]
    label, unit = metric_label(key), unit_of(key)
    if key in STREAM_CURVES:
        return lines(label[0].upper() + label[1:], series, "task", label, unit, late=unit == "%")
    title = f"{label} by {'simulated seconds' if by == 'time' else by}".capitalize()
    return lines(title, series, AXES[by], label, unit, targets, late=unit == "%")


def curve_figures(
    runs: Runs, targets: Sequence[float] = (), places: Mapping[str, int] | None = None, note: str = ""
) -> dict[str, Callable[[], Any]]:
    """Functions that draw the curves of experiments, by file name.

    The main metric, the losses and the reported metrics against rounds, transmitted parameters and, where clients are
    simulated, simulated seconds. Algorithms on a stream transmit nothing: their accuracies on new and on all tasks are
    drawn against the tasks. targets: accuracies that are drawn as dashed lines. places: as in `metric_chart`. note:
    is written below the first chart of each figure.
    """
    places = places or dict(zip(runs, colour_places(runs), strict=True))
    every = [records for seeds in runs.values() for records in seeds]
    streams = all(map(of_stream, every))
    main, loss = (drawn_metric(name, every) for name in (main_metric(r for records in every for r in records), "loss"))
    extra = (name for records in every for name in reported(records) if name not in STREAM_CURVES)
    keys = STREAM_CURVES if streams else dict.fromkeys([main, loss, "train_loss", *extra])
    figures: dict[str, Callable[[], Any]] = {}
    for by in ["task"] if streams else axes_of(every):
        charts = [metric_chart(key, runs, places, by, targets if key == main else ()) for key in keys]
        if shown := [chart for chart in charts if chart]:
            shown[0] = replace(shown[0], note=f"{note} {shown[0].note}".strip())
            figures[f"curves_by_{by}"] = partial(figure, shown)
    return figures


def curves(runs: Runs, by: str = "round", targets: Sequence[float] = ()) -> Any:
    """One figure of `curve_figures`. by: a key of AXES; ignored for algorithms on a stream."""
    figures = curve_figures(runs, targets)
    return figures.get(f"curves_by_{by}", next(iter(figures.values()), new_figure))()


def draw_curves(runs: Runs, folder: Path, targets: Sequence[float] = ()) -> list[Path]:
    """Draw `curve_figures`; returns the PNG and SVG files."""
    return [file for name, draw in curve_figures(runs, targets).items() for file in save(draw(), folder / name)]


def staleness_chart(label: str, records: list[RoundRecord], index: int = 0) -> Chart | None:
    """Histogram of the staleness of all updates of a run; None without an asynchronous schedule."""
    if not (counts := staleness_counts(records)):
        return None
    edges = [tau - 0.5 for tau in range(len(counts) + 1)]
    title = f"Staleness of updates: {label}"
    return histogram(title, edges, {label: counts}, "staleness (server steps)", "updates", index=index, whole=True)


def draw_staleness(runs: dict[str, list[RoundRecord]], folder: Path) -> list[Path]:
    """Draw `staleness_chart` of each run that has one; returns the PNG and SVG files."""
    charts = [chart for label, records in runs.items() if (chart := staleness_chart(label, records))]
    return save(figure(charts), folder / "staleness") if charts else []


Histograms = dict[str, dict[str, list[int]]]
"""Quantity between 0 and 1 -> group -> counts in bins of equal width."""


def histogram_charts(label: str, histograms: Histograms) -> list[Chart]:
    """A chart for each quantity that an algorithm shows of its state, such as the weights of samples."""
    return [
        histogram(
            f"{quantity}: {label}",
            np.linspace(0, 1, len(next(iter(groups.values()))) + 1).tolist(),
            dict(groups),
            quantity,
            "samples",
        )
        for quantity, groups in histograms.items()
    ]


def confusion_table(counts: list[list[int]], names: Sequence[str]) -> Table:
    """Table with a row for each class and a column for each predicted class."""
    return Table(
        [{"class": name, **dict(zip(names, row, strict=True))} for name, row in zip(names, counts, strict=True)]
    )


def draw_confusion(counts: list[list[int]], names: Sequence[str], folder: Path) -> list[Path]:
    """Draw a confusion matrix; returns the PNG and SVG files."""
    chart = heat("Confusion matrix", np.transpose(counts).tolist(), names, "predicted class", "class")
    return save(figure([chart]), folder / "confusion_matrix")


def draw_histograms(runs: dict[str, Histograms], folder: Path) -> list[Path]:
    """Draw `histogram_charts` of each run; returns the PNG and SVG files, if there are histograms."""
    charts = [chart for label, histograms in runs.items() for chart in histogram_charts(label, histograms)]
    return save(figure(charts, titles=len(runs) > 1), folder / "histograms") if charts else []
