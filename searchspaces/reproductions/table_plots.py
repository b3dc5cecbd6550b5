"""Figures of a table: curves with one panel per row, and further figures of each row."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hedgerow.platform.ui.plots import draw_histograms, draw_streams
from hedgerow.platform.ui.plotting import grid, line_styles, save, tidy
from hedgerow.platform.ui.series import STREAM_CURVES, Points, smoothed
from hedgerow.searchspaces.reproductions.row_result import HedgeResult, RowResult, SweepResult
from hedgerow.searchspaces.reproductions.table_file import load_function


def draw_table(results: Sequence[RowResult], folder: Path) -> list[Path]:
    """Draws the figures of the rows of one table, as PNG and SVG in `folder`."""
    sweeps = [result for result in results if isinstance(result, SweepResult)]
    hedges = [result for result in results if isinstance(result, HedgeResult)]
    return (_draw_sweeps(sweeps, folder) if sweeps else []) + (_draw_hedges(hedges, folder) if hedges else [])


def _draw_sweeps(results: list[SweepResult], folder: Path) -> list[Path]:
    """Draws the curves, and the histograms of each method's best configuration, if any."""
    several = len(results) > 1
    histograms = {
        f"{result.row.title}: {heading}" if several else heading: result.histograms(heading)
        for result in results
        for heading in result.row.methods
    }
    files = _draw_curves(results, folder) + draw_histograms(histograms, folder)
    for result in results:
        if result.row.draws:
            files += load_function(result.row.draws)(result.experts, folder / result.row.name)
    return files


def _draw_hedges(results: list[HedgeResult], folder: Path) -> list[Path]:
    """Draws CTM and LTM of every method, with a row of panels per stream."""
    streams: dict[str, dict[str, dict[str, Points]]] = {}
    for result in results:
        curves = {key: result.curve(key) for key in STREAM_CURVES}
        streams.setdefault(result.row.title, {})[result.heading] = curves
    return draw_streams(streams, folder / "curves")


MANY = 8
"""Maximum number of curves whose legend fits into a panel; a longer legend is placed next to it."""


def _draw_curves(results: list[SweepResult], folder: Path) -> list[Path]:
    """Draws the target metric of each method's best configuration against transmissions; PNG and SVG in `folder`.

    Without targets, also draws it against rounds if any method transmits.
    """
    plots = [(result, axis) for result in results for axis in _axes(result)]
    many = max(len(result.row.methods) for result in results) > MANY
    figure, panels = grid(len(plots), 6.2 if many else 4.6, 3.4, columns=2 if len(plots) == 4 else 3)
    for panel, (result, axis) in zip(panels, plots, strict=True):
        draw_panel(panel, result, axis)
    return save(figure, folder / "curves")


def _axes(result: SweepResult) -> list[str]:
    best = [trial[0].records[-1] for heading in result.row.methods if (trial := result.best(heading))]
    if result.targets:
        return ["round" if result.row.unit == "rounds" else "transmissions"]
    if not any(record["transmissions"] for record in best):
        return ["transmissions"]
    return ["round", "transmissions"]


def draw_panel(axes: Any, result: SweepResult, axis: str) -> None:
    # Importing matplotlib takes a second.
    from matplotlib.ticker import MaxNLocator

    metric = result.row.shows or result.metric
    loss, accuracy = "loss" in metric, "accuracy" in metric
    scale = 100 if accuracy else 1
    for heading, style in zip(result.row.methods, line_styles(result.row.methods), strict=True):
        if not (best := result.best(heading)):
            continue
        if axis == "transmissions" and "round" in _axes(result) and not best[0].records[-1]["transmissions"]:
            continue
        # A centralised run transmits nothing: its rounds are epochs.
        points = [(r[axis] or r["round"], scale * r[metric]) for r in best[0].records if metric in r]
        curve = smoothed(points) if result.row.smooth else points
        axes.plot(
            *zip(*curve, strict=True), label=heading, linewidth=1.4, marker="o" if len(points) == 1 else None, **style
        )
        axes.set_xlabel(_label(axis, best[0].records[-1]["transmissions"]))
    values = [value for line in axes.lines for value in line.get_ydata()]
    ends = [line.get_ydata()[-1] for line in axes.lines]
    for target in result.targets:
        axes.axhline(scale * target, color="0.4", linestyle="--", linewidth=0.8)
    if loss and max(values) > 5 * min(values) > 0:
        axes.set_yscale("log")
    if result.targets and accuracy:
        # Zoom in on the last few per cent before the targets if a run gets there, but show every method's final value.
        bottom = max(0, min(100 * min(result.targets) - 6, min(ends) - 2))
        axes.set_ylim(bottom=bottom if max(values) > bottom else None)
    axes.set(
        title=result.row.title,
        ylabel="training loss" if loss else "test accuracy (%)" if accuracy else metric.replace("_", " "),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(axes)
    outside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5), "ncols": -(-len(axes.lines) // 14)}
    inside = {"loc": "upper right" if loss else "lower right"}
    axes.legend(frameon=False, fontsize="small", **(outside if len(axes.lines) > MANY else inside))


def _label(axis: str, transmissions: float) -> str:
    if axis == "round":
        return "round"
    return "transmissions (FedAvg rounds)" if transmissions else "epoch"
