"""The curves of one run or of several."""

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hedgerow.platform.tracking.summary import reported
from hedgerow.platform.ui.plotting import COLOURS, STYLES, grid, save

Record = dict[str, Any]


def draw_curves(runs: dict[str, list[Record]], folder: Path, targets: list[float] | None = None) -> list[Path]:
    """Accuracy and loss against rounds, and against transmitted scalars; PNG and SVG of each in `folder`.

    Of learners of streams, which transmit nothing: the accuracies on new and on all tasks, against the tasks.
    runs: records by the name in the legend. targets: accuracies drawn as dashed lines.
    """
    figures = curve_figures(runs, targets)
    return [file for name, drawn in figures.items() for file in save(drawn(), folder / name)]


def curve_figures(runs: dict[str, list[Record]], targets: list[float] | None = None) -> dict[str, Callable[[], Any]]:
    """What `draw_curves` draws, by name."""
    if _of_streams(runs):
        return {"curves_by_task": partial(curves, runs)}
    return {f"curves_by_{by}": partial(curves, runs, by, targets) for by in AXES}


AXES = {"round": "round", "traffic": "transmitted parameters (down + up)"}
"""What curves are drawn against, and what their axis says."""


def curves(runs: dict[str, list[Record]], by: str = "round", targets: list[float] | None = None) -> Any:
    """One of the figures of `draw_curves`. by: of AXES; learners of streams have their tasks alone."""
    if _of_streams(runs):
        shown = {name: {key: points(records, key) for key in STREAM_CURVES} for name, records in runs.items()}
        for by_key in shown.values():
            by_key["efficiency_points"] = smoothed(by_key["efficiency_points"])
        return stream_curves({"": shown})
    positions = {name: _positions(records, by) for name, records in runs.items()}
    return _federated_curves(runs, positions, AXES[by], targets or [])


def _of_streams(runs: dict[str, list[Record]]) -> bool:
    return all(records and "ctm" in records[0] for records in runs.values())


def _positions(records: list[Record], by: str) -> list[int]:
    if by == "round":
        return [record["round"] for record in records]
    return list(accumulate(record["scalars_down"] + record["scalars_up"] for record in records))


def _federated_curves(
    runs: dict[str, list[Record]], positions: dict[str, list[int]], label: str, targets: list[float]
) -> Any:
    extra = list(dict.fromkeys(name for records in runs.values() for name in reported(records)))
    figure, (accuracy, loss, *others) = grid(2 + len(extra), 5, 4)
    for index, (name, records) in enumerate(runs.items()):
        style = {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": STYLES[index // len(COLOURS) % len(STYLES)],
            "linewidth": 1.6,
        }
        _line(accuracy, positions[name], records, "test_accuracy", 100, label=name, **style)
        _line(loss, positions[name], records, "test_loss", 1, label=f"{name}, test", **style)
        _line(loss, positions[name], records, "train_loss", 1, label=f"{name}, training", alpha=0.35, **style)
        for axes, key in zip(others, extra, strict=True):
            _line(axes, positions[name], records, key, 1, label=name, **style)
    for target in targets:
        accuracy.axhline(100 * target, color="0.4", linestyle="--", linewidth=0.8)
        accuracy.annotate(
            f"{100 * target:g} %", (0.005, 100 * target), xycoords=("axes fraction", "data"), va="bottom", color="0.4"
        )
    accuracy.set(xlabel=label, ylabel="test accuracy (%)")
    loss.set(xlabel=label, ylabel="cross-entropy")
    for axes, key in zip(others, extra, strict=True):
        axes.set(xlabel=label, ylabel=key.replace("_", " "))
    for axes, place in (
        (accuracy, "lower right"),
        (loss, "upper right"),
        *((axes, "best") for axes in others),
    ):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize="small", loc=place)
    return figure


Points = list[tuple[int, float]]


STREAM_CURVES = {
    "ctm": "accuracy on new tasks, mean so far (CTM)",
    "ltm": "accuracy on all tasks so far (LTM)",
    "efficiency_points": "samples of a new task that are needed",
}
"""What is drawn of learners of streams, and what each axis says."""


def points(records: list[Record], key: str) -> Points:
    """(round, value) of the rounds that have it."""
    return [(record["round"], record[key]) for record in records if key in record]


def smoothed(points: Points) -> Points:
    """The mean of a value and of those before it, a twentieth of all."""
    window = max(1, len(points) // 20)
    values = [value for _, value in points]
    return [(x, float(np.mean(values[max(0, i + 1 - window) : i + 1]))) for i, (x, _) in enumerate(points)]


def draw_streams(streams: dict[str, dict[str, dict[str, Points]]], path: Path) -> list[Path]:
    """`stream_curves` as PNG and SVG."""
    return save(stream_curves(streams), path)


def stream_curves(streams: dict[str, dict[str, dict[str, Points]]]) -> Any:
    """CTM, LTM and, where it was measured, the samples needed, against the tasks.

    streams: title, of a row of panels -> name in the legend -> key of STREAM_CURVES -> points.
    """
    from hedgerow.platform.ui.plotting import Drawing

    shown = [key for key in STREAM_CURVES if any(run[key] for runs in streams.values() for run in runs.values())]
    figure = Drawing(figsize=(5 * len(shown), 3.8 * len(streams)), layout="constrained")
    panels = figure.subplots(len(streams), len(shown), squeeze=False)
    for row, (title, curves) in zip(panels, streams.items(), strict=True):
        for axes, key in zip(row, shown, strict=True):
            for index, (name, by_key) in enumerate(curves.items()):
                if by_key[key]:
                    axes.plot(
                        *zip(*by_key[key], strict=True), label=name, color=COLOURS[index % len(COLOURS)],
                        linestyle=STYLES[index // len(COLOURS) % len(STYLES)], linewidth=1.6,
                        marker="o" if key == "ltm" else None, markersize=3,
                    )  # fmt: skip
            axes.set(title=title, xlabel="tasks", ylabel=STREAM_CURVES[key])
            axes.xaxis.get_major_locator().set_params(integer=True)
            if key != "efficiency_points":
                axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            if axes.lines:
                axes.legend(frameon=False, fontsize="small", loc="lower right")
    return figure


Histograms = dict[str, dict[str, list[int]]]
"""What is counted, between 0 and 1 -> of whom -> counts in bins of equal width."""


def draw_histograms(runs: dict[str, Histograms], folder: Path) -> list[Path]:
    """A panel for each run and each of its histograms; PNG and SVG, or nothing where there are none.

    runs: by the name in the panel's title.
    """
    panels = [(name, title, parts) for name, shown in runs.items() for title, parts in shown.items()]
    if not panels:
        return []
    figure, places = grid(len(panels), 4.6, 3.2)
    for axes, (name, title, parts) in zip(places, panels, strict=False):
        for (who, counts), colour in zip(parts.items(), COLOURS, strict=False):
            edges = np.linspace(0, 1, len(counts) + 1)
            axes.stairs(counts, edges, label=who, fill=True, alpha=0.35, color=colour)
            axes.stairs(counts, edges, color=colour, linewidth=1.2)
        axes.set(title=name, xlabel=title, ylabel="samples", xlim=(0, 1))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    return save(figure, folder / "histograms")


def _line(axes: Any, positions: list[int], records: list[Record], key: str, scale: float, **style: Any) -> None:
    there = [(x, scale * r[key]) for x, r in zip(positions, records, strict=True) if key in r]
    if there:
        x, y = np.array(there, dtype=float).T
        axes.plot(x, y, marker="o" if len(there) == 1 else None, **style)
