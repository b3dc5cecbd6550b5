"""Charts of a report, each with a table of its numbers.

Charts are inline SVG, not matplotlib figures. `hedgerow watch RUN --page` draws the page every two seconds next to a
training that needs the cores: the 24 charts of `hedgerow demo` take 0.05 s of CPU and 134 kB, by matplotlib 2.1 s and
741 kB. Colours are variables of the page (light and dark mode), and text stays text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from hedgerow.platform.common.percent import percent as share_text
from hedgerow.platform.common.percent import short_percent
from hedgerow.platform.ui.plotting import COLOURS
from hedgerow.platform.ui.series import Series
from hedgerow.reports.charts.html_table import HtmlTable, table
from hedgerow.reports.charts.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    axes,
    element,
    path,
    picture,
    short,
    spanning,
)

POINTS = 300
"""Maximum number of points of a line: a screen does not show more."""

ROWS = 60
"""Maximum number of rows in the table of a chart."""

_numbers = count(1)
_three_digits = partial(short_percent, digits=3)


@dataclass(frozen=True)
class Chart:
    """A chart with its legend (colour, label), the table of its numbers, and a note below."""

    title: str
    svg: Markup
    legend: list[tuple[str, str]]
    data: HtmlTable | None = None
    note: str = ""
    kind: str = "figure"


def colour(index: int) -> str:
    """CSS class of a series. After the last colour, the colours repeat with dashed lines."""
    return f"s{index % len(COLOURS)}" + (" dashed" if index >= len(COLOURS) else "")


def lines(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    percent: bool = False,
    targets: Sequence[float] = (),
    late: bool = False,
    note: str = "",
) -> Chart | None:
    """Lines with bands for their spread, without non-finite points; None if no point remains.

    x is an integer. late: cut off the steep start of rising lines, so that their ends are distinguishable.
    """
    curves = [one for one in (line.finite() for line in series) if one.points]
    if not curves:
        return None
    values = [v + sign * s for one in curves for (_, v), s in one.pairs for sign in (-1, 1)]
    log = not percent and "loss" in y_label and max(values) > 8 * min(values) > 0
    x_values = [x for one in curves for x, _ in one.points]
    x = _end_to_end(x_values)
    y_values = [*values, *(t for t in targets if min(values) - 0.2 < t < max(values) + 0.2)]
    y = spanning(y_values, HEIGHT - BOTTOM, TOP, log)
    if percent:
        y = Scale(max(0.0, y.low), min(1.0, y.high), y.start, y.end)
    early = False
    if start := late_start(curves) if late else None:
        early = start > y.low
        top = max(values) + 0.05 * (max(values) - start)
        y = Scale(max(y.low, start), min(y.high, top), y.start, y.end, log)
    text_of = _three_digits if percent else short
    name = f"f{next(_numbers)}"
    frame = axes(x, y, x_label, y_label, {t: short(t) for t in x.ticks(whole=True)}, _ticks(y, text_of))
    parts: list[Markup] = []
    for target in targets:
        if y.low <= target <= y.high:
            parts.append(element("line", x1=x.start, x2=x.end, y1=y(target), y2=y(target), class_="target"))
            parts.append(element("text", f"target {text_of(target)}", x=x.start + 4, y=y(target) - 4, class_="target"))
    for one in curves:
        pairs = thinned(one.pairs, POINTS)
        if any(s for _, s in pairs):
            upper = [(x(a), y(min(v + s, y.high))) for (a, v), s in pairs]
            below = [(x(a), y(v - s)) for (a, v), s in pairs]
            parts.append(element("path", d=path(upper + below[::-1], closed=True), class_=f"band {colour(one.index)}"))
    for one in curves:
        places = [(x(a), y(v)) for a, v in thinned(one.points, POINTS)]
        kind = f"line {colour(one.index)}" + (" strong" if one.strong else "")
        if len(places) == 1:
            (a, b), tooltip = places[0], element("title", one.label)
            parts.append(element("circle", tooltip, cx=a, cy=b, r=4, class_=f"dot {colour(one.index)}"))
        else:
            parts.append(element("path", element("title", one.label), d=path(places), class_=kind))
    inner = element("rect", x=x.start - 4, y=0.0, width=x.end - x.start + 8, height=y.start)
    clipped = element("g", *parts, clip_path=f"url(#{name}-inner)")
    inside = [element("clipPath", inner, id=f"{name}-inner"), frame, clipped]
    ends = "; ".join(f"{one.label}: {text_of(one.points[-1][1])}" for one in curves[:12])
    text = f"{y_label} against {x_label}, {len(curves)} line{'s' * (len(curves) > 1)}. At the end {ends}."
    legend = [(colour(one.index) + (" strong" if one.strong else ""), one.label) for one in curves]
    cut_off = " The first rounds are below the axis." if early else ""
    return Chart(
        title, picture(name, title, text, *inside), legend, _data(curves, x_label, text_of), (note + cut_off).strip()
    )


def areas(
    title: str,
    rounds: Sequence[int],
    bands: Sequence[tuple[str, list[float]]],
    y_label: str,
    indices: Sequence[int] = range(len(COLOURS)),
) -> Chart:
    """Stacked shares that add up to one; each holds until the next round. The last band may be "n others".

    indices: colours of the bands.
    """
    edges = [*rounds, 2 * rounds[-1] - rounds[-2] if len(rounds) > 1 else rounds[-1] + 1]
    x = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    parts, legend, base = [], [], [0.0] * len(rounds)
    positions = thinned(list(range(len(rounds))), POINTS)
    for index, (label, shares) in enumerate(bands):
        top = [b + s for b, s in zip(base, shares, strict=True)]
        upper, lower = [], []
        for place, i in enumerate(positions):
            until = edges[positions[place + 1]] if place + 1 < len(positions) else edges[-1]
            upper += [(x(edges[i]), y(top[i])), (x(until), y(top[i]))]
            lower += [(x(edges[i]), y(base[i])), (x(until), y(base[i]))]
        kind = "others" if label.endswith((" other", " others")) else colour(indices[index])
        parts.append(
            element("path", element("title", label), d=path(upper + lower[::-1], closed=True), class_=f"area {kind}")
        )
        legend.append((kind, label))
        base = top
    frame = axes(x, y, "round", y_label, {t: short(t) for t in x.ticks(whole=True)}, _ticks(y, _three_digits))
    text = (
        "Stacked shares by round. In the last round " + "; ".join(f"{n}: {share_text(v[-1])}" for n, v in bands) + "."
    )
    rows = [
        {"round": str(rounds[i])} | {label: share_text(shares[i]) for label, shares in bands}
        for i in thinned(list(range(len(rounds))), ROWS)
    ]
    return Chart(title, picture(f"f{next(_numbers)}", title, text, frame, *parts), legend, table(rows))


def bars(title: str, rows: Sequence[tuple[str, dict[str, float]]], x_label: str, text_of: Any = short) -> Chart:
    """Horizontal bars of stacked parts, one bar per row."""
    names = list(dict.fromkeys(name for _, parts in rows for name in parts))
    step = 44.0
    height = TOP + step * len(rows) + BOTTOM
    most = max((sum(parts.values()) for _, parts in rows), default=0.0) or 1.0
    x = Scale(0.0, most * 1.02, 8.0, WIDTH - RIGHT)
    y = Scale(0.0, float(len(rows)), TOP, height - BOTTOM)
    children = [axes(x, y, x_label, "", {t: short(t) for t in x.ticks()}, {})]
    for i, (label, parts) in enumerate(rows):
        at, place = 0.0, y(i)
        children.append(element("text", label, x=8.0, y=place + 14))
        for name, value in parts.items():
            kind = f"bar {colour(names.index(name))}"
            tooltip = element("title", f"{label}, {name}: {text_of(value)}")
            wide = max(x(at + value) - x(at), 0.0)
            children.append(element("rect", tooltip, x=x(at), y=place + 19, width=wide, height=18.0, class_=kind))
            at += value
    text = "; ".join(f"{label}: " + ", ".join(f"{n} {text_of(v)}" for n, v in parts.items()) for label, parts in rows)
    svg = picture(f"f{next(_numbers)}", title, f"{x_label}. {text}.", *children, height=height)
    data = table(
        [{"experiment": label} | {name: text_of(parts.get(name, 0.0)) for name in names} for label, parts in rows]
    )
    return Chart(title, svg, [(colour(i), name) for i, name in enumerate(names)], data)


def histogram(
    title: str, edges: Sequence[float], parts: Sequence[tuple[str, Sequence[float]]], x_label: str, y_label: str,
    percent: bool = False, index: int = 0, whole: bool = False,
) -> Chart:  # fmt: skip
    """Histogram of one or more groups: counts between edges. index: colour of the first group. whole: integer ticks."""
    x = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    most = max((v for _, counts in parts for v in counts), default=0) or 1
    y = Scale(0.0, most * 1.06, HEIGHT - BOTTOM, TOP)
    text_of = _three_digits if percent else short
    children = [axes(x, y, x_label, y_label, {t: text_of(t) for t in x.ticks(whole=whole)}, _ticks(y, short))]
    for i, (label, counts) in enumerate(parts):
        for low, high, value in zip(edges[:-1], edges[1:], counts, strict=True):
            tooltip = element("title", f"{label}, {text_of(low)} to {text_of(high)}: {short(value)}")
            wide, tall = max(x(high) - x(low) - 1, 0.5), y.start - y(value)
            kind = f"bin {colour(index + i)}"
            if value:
                children.append(element("rect", tooltip, x=x(low), y=y(value), width=wide, height=tall, class_=kind))
    rows = [
        {x_label: f"{text_of(low)} to {text_of(high)}"} | {label: short(counts[i]) for label, counts in parts}
        for i, (low, high) in enumerate(pairwise(edges))
    ]
    text = f"{y_label} by {x_label}; the largest bin has {short(max(v for _, c in parts for v in c))}."
    legend = [(colour(index + i), label) for i, (label, _) in enumerate(parts)]
    return Chart(title, picture(f"f{next(_numbers)}", title, text, *children), legend, table(rows))


LEVELS = 8


def heat(title: str, counts: Sequence[Sequence[int]], names: Sequence[str], x_label: str, note: str = "") -> Chart:
    """Heat map of counts by column (named by x_label) and row (a class). Larger counts have stronger colours."""
    clients, classes = len(counts), len(names)
    step = min(22.0, max(3.0, 400.0 / classes))
    height = TOP + step * classes + BOTTOM
    x = Scale(0.0, float(clients), LEFT + 20, WIDTH - RIGHT)
    y = Scale(0.0, float(classes), height - BOTTOM, TOP)
    most = max(max(row) for row in counts) or 1
    cells: dict[int, list[str]] = {}
    wide, tall = x(1) - x(0), y(0) - y(1)
    for client, row in enumerate(counts):
        for label, value in enumerate(row):
            if value:
                # Square root: on a linear scale, a few large counts would leave all others pale.
                level = math.ceil(LEVELS * math.sqrt(value / most))
                d = f"M{x(client):.1f} {y(label + 1):.1f}h{wide:.2f}v{tall:.2f}h-{wide:.2f}z"
                cells.setdefault(level, []).append(d)
    every = max(1, -(-classes // 20))
    y_ticks = {i + 0.5: str(names[i])[:9] for i in range(0, classes, every)}
    x_ticks = {t + 0.5: short(t) for t in Scale(0.0, float(clients), 0, 1).ticks(whole=True) if t < clients}
    frame = axes(x, y, x_label, "", x_ticks, y_ticks)
    squares = [
        element("path", d="".join(d), class_="cell", fill_opacity=f"{level / LEVELS:.3f}")
        for level, d in sorted(cells.items())
    ]
    text = f"Samples per {x_label} and class, of {clients} {x_label}s: up to {most}."
    rows = [
        {x_label: str(i)} | {str(n): str(v) for n, v in zip(names, row, strict=True)} for i, row in enumerate(counts)
    ]
    svg = picture(f"f{next(_numbers)}", title, text, frame, *squares, height=height)
    return Chart(title, svg, [], table(rows[:ROWS]) if classes <= 40 else None, note)


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


def _end_to_end(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    return Scale(low, high, LEFT, WIDTH - RIGHT) if high > low else Scale(low - 1, high + 1, LEFT, WIDTH - RIGHT)


def _ticks(scale: Scale, text_of: Any) -> dict[float, str]:
    return {value: text_of(value) for value in scale.ticks()}


def _data(series: Sequence[Series], x_label: str, text_of: Any) -> HtmlTable:
    """Table of the points of all lines by x, thinned to ROWS rows."""
    by_x: dict[float, dict[str, str]] = {}
    for one in series:
        for (x, value), spread in one.pairs:
            around = f" ± {text_of(spread)}" if spread else ""
            by_x.setdefault(x, {})[one.label] = f"{text_of(value)}{around}"
    labels = [one.label for one in series]
    rows = [
        {x_label: f"{x:,.4g}" if x < 1e4 else f"{x:,.0f}"} | {label: by_x[x].get(label, "-") for label in labels}
        for x in thinned(sorted(by_x), ROWS)
    ]
    return table(rows)
