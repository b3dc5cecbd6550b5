"""Charts of one panel: lines, stacked areas, bars, histograms and heat maps, each with the table of its numbers.

matplotlib draws them, on the panels of a figure or on a page.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from hedgerow.platform.common.numbers import MeanStd, number, tick
from hedgerow.platform.common.table import Column, Table
from hedgerow.platform.ui.plotting import ACCENT, CARD, COLOURS, INK, SOFT, legend_outside, line_style, new_figure, tidy
from hedgerow.platform.ui.series import Series

POINTS = 300
"""Maximum number of points of a line: a screen does not show more."""

ROWS = 60
"""Maximum number of rows in the table of a chart."""

LEVELS = 8
"""Number of shades of a heat map."""

SCALE = 26.0
"""Height of the scale of shades above a heat map."""

HEIGHT = 300.0
"""Height of a chart on a page, whose width is plotting.WIDTH."""

TIP = "tip: "
"""Beginning of the identifiers of elements whose text a page shows under the mouse."""

OTHERS = -1
"""Place of the colour of everything that has no colour of its own."""


@dataclass(frozen=True)
class Chart:
    """A chart. draw: draws it on axes of matplotlib. keys: label of each colour, by the colour's place.

    text: description for screen readers. data: its numbers.
    """

    title: str
    draw: Callable[[Any], None]
    keys: dict[str, int]
    text: str
    data: Table | None = None
    note: str = ""
    height: float = HEIGHT
    kind: str = "figure"

    @property
    def legend(self) -> list[tuple[str, str]]:
        """Classes of the page's style, and label, of each colour; after the last colour, all repeat with dashes."""
        return [
            ("others" if place < 0 else f"s{place % len(COLOURS)}" + " dashed" * (place >= len(COLOURS)), label)
            for label, place in self.keys.items()
        ]


def figure(charts: Sequence[Chart], titles: bool = False, width: float = 4.6) -> Any:
    """A matplotlib figure with a panel per chart, and one legend next to them. width: inches of a panel."""
    from matplotlib import rc_context

    columns = min(3, len(charts))
    rows = -(-len(charts) // columns)
    heights = [max(chart.height for chart in charts[i * columns : (i + 1) * columns]) for i in range(rows)]
    size = (width * columns, sum(heights) / HEIGHT * 3.4)
    drawn = new_figure(figsize=size, layout="constrained")
    # Names may have dollar signs.
    with rc_context({"text.parse_math": False}):
        panels = drawn.subplots(rows, columns, squeeze=False, height_ratios=heights).ravel()
        for axes, chart in zip(panels, charts, strict=False):
            chart.draw(axes)
            if titles:
                axes.set_title(textwrap.fill(chart.title, 48), fontsize="medium")
            if chart.note:
                place = {"xytext": (0, -36), "textcoords": "offset points", "xycoords": "axes fraction", "va": "top"}
                axes.annotate(textwrap.fill(chart.note, 60), (0, 0), fontsize="small", color=SOFT, **place)
        legend_outside(drawn, {label: place for chart in charts for label, place in chart.keys.items()})
    for axes in panels[len(charts) :]:
        axes.set_visible(False)
    return drawn


def lines(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    unit: str = "",
    targets: Sequence[float] = (),
    late: bool = False,
    top: float = math.inf,
    note: str = "",
) -> Chart | None:
    """Lines with bands for their spread, without non-finite points; None if no point remains.

    x is an integer. late: cut off the steep start of rising lines, so that their ends are distinguishable. top: largest
    value of a linear y axis.
    """
    curves = [one for one in (line.finite() for line in series) if one.points]
    if not curves:
        return None
    values = [v + sign * s for one in curves for (_, v), s in one.pairs for sign in (-1, 1)]
    log = unit != "%" and "loss" in y_label and max(values) > 8 * min(values) > 0
    low, high = _span([*values, *(t for t in targets if min(values) - 0.2 < t < max(values) + 0.2)], log)
    if unit == "%":
        # A metric of the user's own may be outside.
        shares = [0.0, 1.0, *(value for one in curves for _, value in one.points)]
        low, high = max(min(shares), low), min(max(shares), high)
    if (start := late_start(curves) if late else None) is not None and start > low:
        low, high = start, min(high, max(values) + 0.05 * (max(values) - start))
        note += " The first rounds are below the axis."
    if high > top and not log:
        high = top
        ends = ", ".join(f"{one.label} {number(y, unit)}" for one in curves if (y := one.points[-1][1]) > top)
        note += f" Above the axis at the end: {ends}."
    x_values = [x for one in curves for x, _ in one.points]

    def draw(axes: Any) -> None:
        _frame(axes, x_label, y_label, unit, whole=True)
        if log:
            _log_axis(axes, "y", low, high)
        for target in targets:
            if low <= target <= high:
                axes.axhline(target, color=SOFT, linestyle=(0, (5, 4)), linewidth=1)
                place = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": "small", "color": SOFT}
                axes.annotate(f"target {tick(target, unit)}", (0, target), xycoords=axes.get_yaxis_transform(), **place)
        for rank, one in enumerate(curves):
            # The first line is above the others.
            points = thinned(one.pairs, POINTS)
            (x, y), spread = np.array([p for p, _ in points]).T, np.array([s for _, s in points])
            style = line_style(one.index)
            if spread.any():
                outline = np.concatenate([y + spread, np.maximum(y - spread, low)[::-1]])
                axes.fill(np.concatenate([x, x[::-1]]), outline, color=style["color"], alpha=0.16, linewidth=0)
            axes.plot(
                x,
                y,
                marker="o" if len(x) == 1 else None,
                gid=TIP + one.label,
                label=one.label,
                # A single point is often at the edge.
                clip_on=len(x) > 1,
                zorder=2 + 0.5**rank,
                **style,
            )
        axes.set(ylim=(low, high), xlim=_span(x_values, margin=0.0))

    ends = "; ".join(f"{one.label}: {number(one.points[-1][1], unit)}" for one in curves[:12])
    text = f"{y_label} against {x_label}, {len(curves)} line{'s' * (len(curves) > 1)}. At the end {ends}."
    keys = {one.label: one.index for one in curves}
    # Several points may have the same x: a round may transmit nothing.
    points = {
        one.label: {
            (x, place): MeanStd(y, s, 0) if one.spread else y
            for x, same in groupby(one.pairs, key=lambda pair: pair[0][0])
            for place, ((_, y), s) in enumerate(same)
        }
        for one in curves
    }
    shown = sorted({at for values in points.values() for at in values})
    columns = {label: [values.get(at) for at in shown] for label, values in points.items()}
    data = _table(x_label, [x for x, _ in shown], columns, unit)
    return Chart(title, draw, keys, text, data, note.strip())


def areas(title: str, rounds: Sequence[int], bands: Sequence[tuple[str, Sequence[float], int]], y_label: str) -> Chart:
    """Stacked shares that add up to one; each holds until the next round. bands: label, shares and colour's place."""
    edges = np.array([*rounds, 2 * rounds[-1] - rounds[-2] if len(rounds) > 1 else rounds[-1] + 1])
    positions = thinned(list(range(len(rounds))), POINTS)
    places = edges[[*positions, -1]].repeat(2)[1:-1]

    def draw(axes: Any) -> None:
        _frame(axes, "round", y_label, "%", whole=True)
        base = np.zeros(len(positions))
        for label, shares, index in bands:
            above = base + np.array(shares)[positions]
            outline = np.concatenate([above.repeat(2), base.repeat(2)[::-1]])
            color = line_style(index)["color"]
            style = {"facecolor": color, "edgecolor": CARD, "linewidth": 0.7, "gid": TIP + label}
            axes.fill(np.concatenate([places, places[::-1]]), outline, **style)
            base = above
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1))

    ends = "; ".join(f"{label}: {number(shares[-1], '%')}" for label, shares, _ in bands)
    data = _table("round", rounds, {label: shares for label, shares, _ in bands}, "%")
    keys = {label: index for label, _, index in bands}
    return Chart(title, draw, keys, f"Stacked shares by round. In the last round {ends}.", data)


def bars(title: str, rows: Sequence[tuple[str, dict[str, float]]], x_label: str, unit: str = "") -> Chart:
    """Horizontal bars of stacked parts, one bar per row."""
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))

    def draw(axes: Any) -> None:
        _frame(axes, x_label, "")
        for i, (label, parts) in enumerate(rows):
            at = 0.0
            axes.annotate(label, (0, i - 0.18), color=SOFT, xycoords=axes.get_yaxis_transform())
            for name, value in parts.items():
                tip = f"{TIP}{label}, {name}: {number(value, unit)}"
                color = line_style(names.index(name))["color"]
                axes.barh(i + 0.14, value, 0.42, at, color=color)[0].set_gid(tip)
                at += value
        axes.grid(False)
        axes.set(yticks=[], ylim=(len(rows) - 0.5, -0.5), xlim=(0, None))

    text = "; ".join(f"{one}: " + ", ".join(f"{n} {number(v, unit)}" for n, v in of.items()) for one, of in rows)
    parts = {name: [parts.get(name, 0.0) for _, parts in rows] for name in names}
    data = _table("experiment", [label for label, _ in rows], parts, unit)
    keys = {name: i for i, name in enumerate(names)}
    return Chart(title, draw, keys, f"{x_label}. {text}.", data, height=60 + 44.0 * len(rows))


def histogram(
    title: str, edges: Sequence[float], groups: dict[str, Sequence[float]], x_label: str, y_label: str, unit: str = "",
    index: int = 0, whole: bool = False, log: bool = False,
) -> Chart:  # fmt: skip
    """Histogram of one or more groups: counts between edges. index: place of the first group's colour. whole:
    the x axis has integers. log: it is logarithmic."""
    most = max((value for counts in groups.values() for value in counts), default=0) or 1
    bins = [f"{tick(low, unit)} to {tick(high, unit)}" for low, high in pairwise(edges)]

    def draw(axes: Any) -> None:
        _frame(axes, x_label, y_label, whole=whole)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.xaxis.set_major_formatter(lambda value, _: tick(value, unit))
        if log:
            _log_axis(axes, "x", edges[0], edges[-1])
        for i, (label, counts) in enumerate(groups.items()):
            style = {"align": "edge", "alpha": 0.8, "edgecolor": CARD, "linewidth": 0.7}
            color = line_style(index + i)["color"]
            drawn = axes.bar(edges[:-1], counts, np.diff(edges), color=color, **style)
            for bar, between, value in zip(drawn, bins, counts, strict=True):
                bar.set_gid(f"{TIP}{label}, {between}: {tick(value)}")
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, 1.06 * most))

    # The axis names a single group of the same name.
    keys = {label: index + i for i, label in enumerate(groups) if label != y_label}
    text = f"{y_label} by {x_label}; the largest bin has {tick(most)}."
    return Chart(title, draw, keys, text, _table(x_label, bins, groups))


def heat(
    title: str, counts: Sequence[Sequence[int]], names: Sequence[str], x_label: str, y_label: str = "", note: str = ""
) -> Chart:
    """Heat map of counts by column (named by x_label) and row (a class), below a scale of its shades from light to
    dark: larger counts are darker.
    """
    array = np.array(counts)
    # Square root: on a linear scale, a few large counts would leave all others pale.
    levels = np.ceil(LEVELS * np.sqrt(array / (array.max() or 1))).astype(int)
    every = max(1, -(-len(names) // 20))
    row = min(22.0, max(3.0, 400.0 / len(names)))
    top = len(names) - 0.5 + SCALE / row

    def draw(axes: Any) -> None:
        from matplotlib.patches import PathPatch, Rectangle
        from matplotlib.path import Path

        _frame(axes, x_label, y_label, whole=True)
        wide, high = 0.05 * len(array), 9.0 / row
        for level in range(1, LEVELS + 1):
            corner = (len(array) * 0.25 + level * wide, top - high)
            axes.add_patch(Rectangle(corner, wide, high, facecolor=ACCENT, alpha=level / LEVELS, linewidth=0))
        style = {"va": "center", "color": SOFT, "fontsize": "small"}
        axes.text(0.29 * len(array), top - high / 2, "1", ha="right", **style)
        axes.text(0.71 * len(array), top - high / 2, f"{array.max()} samples", **style)
        for level in range(1, LEVELS + 1):
            corners = np.argwhere(levels == level)
            if len(corners):
                squares = corners[:, None] + np.array([(0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]) - 0.5
                path = Path.make_compound_path_from_polys(squares[:, :-1])
                axes.add_patch(PathPatch(path, facecolor=ACCENT, alpha=level / LEVELS, linewidth=0))
        ticks = range(0, len(names), every)
        axes.set_yticks(ticks, [str(names[i])[:9] for i in ticks])
        axes.grid(False)
        axes.set(xlim=(-0.5, len(array) - 0.5), ylim=(-0.5, top))

    text = f"Samples per {x_label} and class, of {len(array)} columns: up to {array.max()}."
    columns = {str(name): column.tolist() for name, column in zip(names, array.T, strict=True)}
    data = _table(x_label, range(len(array)), columns) if len(names) <= 40 else None
    return Chart(title, draw, {}, text, data, note, 60 + SCALE + len(names) * row)


def late_start(drawn: Sequence[Series]) -> float | None:
    """Start of the y axis for rising lines, just below their values after the first tenth; None if not needed."""
    after = [value for one in drawn for _, value in one.points[len(one.points) // 10 :]]
    ends = [one.points[-1][1] for one in drawn]
    if len(after) < 20 or min(ends) < 2 * min(v for one in drawn for _, v in one.points):
        return None
    low = float(np.quantile(after, 0.02))
    return low - 0.1 * (max(after) - low)


def thinned(values: list[Any], most: int) -> list[Any]:
    """At most `most` values, evenly spaced, including the first and the last."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def _span(values: Sequence[float], log: bool = False, margin: float = 0.05) -> tuple[float, float]:
    """Ends of an axis that covers the values with a margin."""
    low, high = min(values), max(values)
    if log:
        room = (high / low) ** margin if high > low else 1.5
        return low / room, high * room
    room = margin * (high - low) or (0.0 if high > low else 0.05 * abs(high) or 1.0)
    return low - room, high + room


def _frame(axes: Any, x_label: str, y_label: str, unit: str = "", whole: bool = False) -> None:
    """Labels, round ticks and grid lines. unit: of the y axis. whole: integer ticks of the x axis."""
    from matplotlib.ticker import MaxNLocator

    tidy(axes)
    steps = [1, 2, 5, 10] if whole else [1, 2, 2.5, 5, 10]
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=steps, integer=whole, min_n_ticks=1))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(lambda value, _: tick(value))
    axes.yaxis.set_major_formatter(lambda value, _: tick(value, unit))
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)


def _log_axis(axes: Any, name: str, low: float, high: float) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis, decades = getattr(axes, f"{name}axis"), math.log10(high / low)
    axis.set_major_locator(LogLocator(subs=[1, 2, 5] if decades < 1.5 else [1, 3] if decades < 3 else [1]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(lambda value, _: tick(value))


def _table(first: str, places: Sequence[Any], columns: Mapping[str, Sequence[Any]], unit: str = "") -> Table:
    """Table of a chart's numbers, thinned to ROWS rows. first: heading of the column of places."""
    rows = [{first: place} | {name: of[i] for name, of in columns.items()} for i, place in enumerate(places)]
    return Table(thinned(rows, ROWS), columns=[Column(first, first, ""), *(Column(n, n, unit) for n in columns)])
