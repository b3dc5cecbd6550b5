"""Figures of one run or of several: curves and histograms."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.common.percent import short_percent
from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.summary import main_metric, reported
from hedgerow.platform.ui.plotting import COLOURS, grid, line_styles, new_figure, save, tidy
from hedgerow.platform.ui.series import (
    AXES,
    STREAM_CURVES,
    Points,
    axes_of,
    curve,
    mean_series,
    metric_label,
    of_stream,
    staleness_counts,
)


def draw_curves(runs: dict[str, list[RoundRecord]], folder: Path, targets: list[float] | None = None) -> list[Path]:
    """Draw the main metric and the loss against rounds, transmitted parameters and, where clients are
    simulated, simulated seconds; returns the PNG and SVG files.

    Algorithms on a stream transmit nothing: their accuracies on new and on all tasks are drawn against the tasks.
    runs: records by name in the legend. targets: accuracies that are drawn as dashed lines.
    """
    figures = curve_figures(runs, targets)
    return [file for name, draw in figures.items() for file in save(draw(), folder / name)]


def curve_figures(
    runs: dict[str, list[RoundRecord]], targets: list[float] | None = None
) -> dict[str, Callable[[], Any]]:
    """Functions that create the figures of `draw_curves`, by file name."""
    if all(map(of_stream, runs.values())):
        return {"curves_by_task": partial(curves, runs)}
    return {f"curves_by_{by}": partial(curves, runs, by, targets) for by in axes_of(runs.values())}


def draw_seed_curves(
    groups: dict[str, list[list[RoundRecord]]], folder: Path, targets: list[float] | None = None
) -> list[Path]:
    """Draw the same as `draw_curves` for experiments with several seeds, as `seed_curves` does."""
    if all(of_stream(records) for runs in groups.values() for records in runs):
        return draw_curves(_one_by_one(groups), folder)
    axes = axes_of(records for runs in groups.values() for records in runs)
    return [file for by in axes for file in save(seed_curves(groups, by, targets), folder / f"curves_by_{by}")]


def _one_by_one(groups: dict[str, list[list[RoundRecord]]]) -> dict[str, list[RoundRecord]]:
    return {f"{name} ({i})": records for name, runs in groups.items() for i, records in enumerate(runs, 1)}


def curves(runs: dict[str, list[RoundRecord]], by: str = "round", targets: list[float] | None = None) -> Any:
    """One figure of `draw_curves`. by: a key of AXES; ignored for algorithms on a stream."""
    return seed_curves({name: [records] for name, records in runs.items()}, by, targets)


def seed_curves(
    groups: dict[str, list[list[RoundRecord]]], by: str = "round", targets: list[float] | None = None
) -> Any:
    """One figure of `draw_curves` for experiments with several runs, by name: lines are means over the runs, bands are
    one standard deviation. On a stream, each run has its own line.
    """
    runs = {name: group[0] for name, group in groups.items()}
    if all(map(of_stream, runs.values())):
        runs = _one_by_one(groups) if max(map(len, groups.values())) > 1 else runs
    if all(map(of_stream, runs.values())):
        metrics = {
            name: {key: list(curve(records, key).values()) for key in STREAM_CURVES} for name, records in runs.items()
        }
        return stream_curves({"": metrics})
    every = [records for group in groups.values() for records in group]
    extra = list(dict.fromkeys(name for records in every for name in reported(records)))
    main = f"test_{main_metric(record for records in every for record in records)}"
    share = "accuracy" in main
    figure, (accuracy, loss, *others) = grid(2 + len(extra), 5, 4)
    scales = (100 if share else 1, *[1] * len(extra))
    panels = list(zip((accuracy, *others), (main, *extra), scales, strict=True))
    for (name, group), line in zip(groups.items(), line_styles(groups), strict=True):
        style = {**line, "linewidth": 1.6}
        for axes, key, scale in panels:
            _line(axes, group, key, by, scale, label=name, **style)
        _line(loss, group, "test_loss", by, label=name, **style)
        _line(loss, group, "train_loss", by, alpha=0.35, **style)
    for target in targets or []:
        accuracy.axhline(100 * target, color="0.4", linestyle="--", linewidth=0.8)
        accuracy.annotate(
            short_percent(target),
            (0.995, 100 * target),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="top",
            color="0.4",
        )
    labels = [f"{metric_label(main)} (%)" if share else metric_label(main), "loss", *map(metric_label, extra)]
    if main == "test_accuracy":
        labels[1] = "cross-entropy"
    if any("train_loss" in record for records in every for record in records):
        labels[1] += " (pale: training)"
    from matplotlib.ticker import EngFormatter, MaxNLocator

    places = ["lower right" if share else "best", "upper right", *["best"] * len(extra)]
    for axes, label, place in zip((accuracy, loss, *others), labels, places, strict=True):
        axes.set(xlabel=AXES[by], ylabel=label)
        if by == "round":
            axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
        if by == "traffic":
            axes.xaxis.set_major_formatter(EngFormatter())
        tidy(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small", loc=place)
    return figure


def _line(axes: Any, runs: list[list[RoundRecord]], key: str, by: str, scale: float = 1, **style: Any) -> None:
    """Draw the mean of a metric over runs and, for several runs, its band."""
    series = mean_series("", [curve(records, key, by) for records in runs], 0)
    if not series.points:
        return
    x, y = np.array(series.points, dtype=float).T
    axes.plot(x, scale * y, marker="o" if len(x) == 1 else None, **style)
    if series.spread:
        spread = np.array(series.spread)
        axes.fill_between(x, scale * (y - spread), scale * (y + spread), color=style["color"], alpha=0.15, linewidth=0)


def draw_streams(streams: dict[str, dict[str, dict[str, Points]]], path: Path) -> list[Path]:
    """Draw `stream_curves`; returns the PNG and SVG files."""
    return save(stream_curves(streams), path)


def stream_curves(streams: dict[str, dict[str, dict[str, Points]]]) -> Any:
    """Figure of CTM, LTM and, if measured, the number of samples needed, against the tasks.

    streams: title of a row of panels -> name in the legend -> key of STREAM_CURVES -> points.
    """
    keys = [key for key in STREAM_CURVES if any(run[key] for runs in streams.values() for run in runs.values())]
    figure = new_figure(figsize=(5 * len(keys), 3.8 * len(streams)), layout="constrained")
    panels = figure.subplots(len(streams), len(keys), squeeze=False)
    for row, (title, runs) in zip(panels, streams.items(), strict=True):
        for axes, key in zip(row, keys, strict=True):
            for (name, by_key), style in zip(runs.items(), line_styles(runs), strict=True):
                if by_key[key]:
                    marker = "o" if key == "ltm" else None
                    points = zip(*by_key[key], strict=True)
                    axes.plot(*points, label=name, marker=marker, markersize=3, linewidth=1.6, **style)
            axes.set(title=title, xlabel="tasks", ylabel=STREAM_CURVES[key])
            axes.xaxis.get_major_locator().set_params(integer=True)
            if key != "efficiency_points":
                axes.yaxis.set_major_formatter(lambda value, _: short_percent(value))
            tidy(axes)
            if axes.lines:
                axes.legend(frameon=False, fontsize="small", loc="lower right")
    return figure


def draw_staleness(runs: dict[str, list[RoundRecord]], folder: Path) -> list[Path]:
    """Draw how stale the updates of each run with an asynchronous schedule were; returns the PNG and SVG files.

    runs: by the title of the panel.
    """
    panels = {name: counts for name, records in runs.items() if (counts := staleness_counts(records))}
    if not panels:
        return []
    figure, places = grid(len(panels), 4.6, 3.2)
    for axes, (name, counts) in zip(places, panels.items(), strict=True):
        axes.bar(range(len(counts)), counts, color=COLOURS[0])
        axes.set(title=name, xlabel="staleness (server steps)", ylabel="updates")
        axes.xaxis.get_major_locator().set_params(integer=True)
        tidy(axes, grid=False)
    return save(figure, folder / "staleness")


Histograms = dict[str, dict[str, list[int]]]
"""Quantity between 0 and 1 -> group -> counts in bins of equal width."""


def draw_histograms(runs: dict[str, Histograms], folder: Path) -> list[Path]:
    """Draw a panel for each run and each of its histograms; returns the PNG and SVG files, if there are histograms.

    runs: by the title of the panel.
    """
    panels = [(name, quantity, groups) for name, histograms in runs.items() for quantity, groups in histograms.items()]
    if not panels:
        return []
    figure, places = grid(len(panels), 4.6, 3.2)
    for axes, (name, quantity, groups) in zip(places, panels, strict=True):
        for (group, counts), colour in zip(groups.items(), COLOURS, strict=False):
            edges = np.linspace(0, 1, len(counts) + 1)
            axes.stairs(counts, edges, label=group, fill=True, alpha=0.35, color=colour)
            axes.stairs(counts, edges, color=colour, linewidth=1.2)
        axes.set(title=name, xlabel=quantity, ylabel="samples", xlim=(0, 1))
        tidy(axes, grid=False)
        axes.legend(frameon=False, fontsize="small")
    return save(figure, folder / "histograms")
