"""The figures of a report, each with the table of the numbers behind it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

from markupsafe import Markup

from hedgerow.reports.charts.html_table import Table, table
from hedgerow.reports.charts.series import Series, late_start, thinned
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

COLOURS = 8
"""Of the page's style; further series repeat them, dashed."""

POINTS = 300
"""Of a line, at most: more than that no screen shows."""

ROWS = 60
"""Of the table behind a line, at most."""

_numbers = count(1)


@dataclass(frozen=True)
class Figure:
    """A picture, its legend (colour, label), the numbers behind it, and what is to be said below."""

    title: str
    svg: Markup
    legend: list[tuple[str, str]]
    data: Table | None = None
    note: str = ""
    kind: str = "figure"


def colour(index: int) -> str:
    """The class of a series."""
    return f"s{index % COLOURS}" + (" dashed" if index >= COLOURS else "")


def lines(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    percent: bool = False,
    targets: Sequence[float] = (),
    late: bool = False,
    note: str = "",
) -> Figure | None:
    """Lines with bands of their spread; points that are not finite are left out. None where no point is left.

    x counts something. late: lines that rise from far below are cut off there, for the sake of their ends.
    """
    drawn = [one for one in (given.finite() for given in series) if one.points]
    if not drawn:
        return None
    values = [v + sign * s for one in drawn for (_, v), s in one.pairs for sign in (-1, 1)]
    log = not percent and "loss" in y_label and max(values) > 8 * min(values) > 0
    x_values = [x for one in drawn for x, _ in one.points]
    x = _end_to_end(x_values)
    shown = [*values, *(t for t in targets if min(values) - 0.2 < t < max(values) + 0.2)]
    y = spanning(shown, HEIGHT - BOTTOM, TOP, log)
    if percent:
        y = Scale(max(0.0, y.low), min(1.0, y.high), y.start, y.end)
    early = False
    if start := late_start(drawn) if late else None:
        early = start > y.low
        top = max(values) + 0.05 * (max(values) - start)
        y = Scale(max(y.low, start), min(y.high, top), y.start, y.end, log)
    tell = _percent if percent else short
    name = f"f{next(_numbers)}"
    frame = axes(x, y, x_label, y_label, {t: short(t) for t in x.ticks(whole=True)}, _told(y, tell))
    parts: list[Markup] = []
    for target in targets:
        if y.low <= target <= y.high:
            parts.append(element("line", x1=x.start, x2=x.end, y1=y(target), y2=y(target), class_="target"))
            parts.append(element("text", f"target {tell(target)}", x=x.start + 4, y=y(target) - 4, class_="target"))
    for one in drawn:
        pairs = thinned(one.pairs, POINTS)
        if any(s for _, s in pairs):
            upper = [(x(a), y(min(v + s, y.high))) for (a, v), s in pairs]
            below = [(x(a), y(v - s)) for (a, v), s in pairs]
            parts.append(element("path", d=path(upper + below[::-1], closed=True), class_=f"band {colour(one.index)}"))
    for one in drawn:
        places = [(x(a), y(v)) for a, v in thinned(one.points, POINTS)]
        kind = f"line {colour(one.index)}" + (" strong" if one.strong else "")
        if len(places) == 1:
            (a, b), told = places[0], element("title", one.label)
            parts.append(element("circle", told, cx=a, cy=b, r=4, class_=f"dot {colour(one.index)}"))
        else:
            parts.append(element("path", element("title", one.label), d=path(places), class_=kind))
    inner = element("rect", x=x.start - 4, y=0.0, width=x.end - x.start + 8, height=y.start)
    clipped = element("g", *parts, clip_path=f"url(#{name}-inner)")
    inside = [element("clipPath", inner, id=f"{name}-inner"), frame, clipped]
    ends = "; ".join(f"{one.label}: {tell(one.points[-1][1])}" for one in drawn[:12])
    text = f"{y_label} against {x_label}, {len(drawn)} line{'s' * (len(drawn) > 1)}. At the end {ends}."
    legend = [(colour(one.index) + (" strong" if one.strong else ""), one.label) for one in drawn]
    below_it = " The first rounds lie below." if early else ""
    return Figure(
        title, picture(name, title, text, *inside), legend, _data(drawn, x_label, tell), (note + below_it).strip()
    )


def areas(
    title: str,
    rounds: Sequence[int],
    bands: Sequence[tuple[str, list[float]]],
    y_label: str,
    indices: Sequence[int] = range(COLOURS),
) -> Figure:
    """Shares that add up to one, stacked; each holds from its round to the next. The last band may be the others'.

    indices: the colours of the bands.
    """
    edges = [*rounds, 2 * rounds[-1] - rounds[-2] if len(rounds) > 1 else rounds[-1] + 1]
    x = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    y = Scale(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    parts, legend, base = [], [], [0.0] * len(rounds)
    chosen = thinned(list(range(len(rounds))), POINTS)
    for index, (label, shares) in enumerate(bands):
        top = [b + s for b, s in zip(base, shares, strict=True)]
        upper, lower = [], []
        for place, i in enumerate(chosen):
            until = edges[chosen[place + 1]] if place + 1 < len(chosen) else edges[-1]
            upper += [(x(edges[i]), y(top[i])), (x(until), y(top[i]))]
            lower += [(x(edges[i]), y(base[i])), (x(until), y(base[i]))]
        kind = "others" if label.endswith((" other", " others")) else colour(indices[index])
        parts.append(
            element("path", element("title", label), d=path(upper + lower[::-1], closed=True), class_=f"area {kind}")
        )
        legend.append((kind, label))
        base = top
    frame = axes(x, y, "round", y_label, {t: short(t) for t in x.ticks(whole=True)}, _told(y, _percent))
    text = "Stacked shares by round. In the last round " + "; ".join(f"{n}: {_percent(v[-1])}" for n, v in bands) + "."
    rows = [
        {"round": str(rounds[i])} | {label: f"{shares[i]:.1%}" for label, shares in bands}
        for i in thinned(list(range(len(rounds))), ROWS)
    ]
    return Figure(title, picture(f"f{next(_numbers)}", title, text, frame, *parts), legend, table(rows))


def bars(title: str, rows: Sequence[tuple[str, dict[str, float]]], x_label: str, tell: Any = short) -> Figure:
    """A bar for each row, of stacked parts."""
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
            told = element("title", f"{label}, {name}: {tell(value)}")
            wide = max(x(at + value) - x(at), 0.0)
            children.append(element("rect", told, x=x(at), y=place + 19, width=wide, height=18.0, class_=kind))
            at += value
    text = "; ".join(f"{label}: " + ", ".join(f"{n} {tell(v)}" for n, v in parts.items()) for label, parts in rows)
    svg = picture(f"f{next(_numbers)}", title, f"{x_label}. {text}.", *children, height=height)
    data = table(
        [{"experiment": label} | {name: tell(parts.get(name, 0.0)) for name in names} for label, parts in rows]
    )
    return Figure(title, svg, [(colour(i), name) for i, name in enumerate(names)], data)


def histogram(
    title: str, edges: Sequence[float], parts: Sequence[tuple[str, Sequence[float]]], x_label: str, y_label: str,
    percent: bool = False, index: int = 0, whole: bool = False,
) -> Figure:  # fmt: skip
    """Counts between edges, of one or of several. index: the colour of the first. whole: what is counted is whole."""
    x = Scale(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    most = max((v for _, counts in parts for v in counts), default=0) or 1
    y = Scale(0.0, most * 1.06, HEIGHT - BOTTOM, TOP)
    tell = _percent if percent else short
    children = [axes(x, y, x_label, y_label, {t: tell(t) for t in x.ticks(whole=whole)}, _told(y, short))]
    for i, (label, counts) in enumerate(parts):
        for low, high, value in zip(edges[:-1], edges[1:], counts, strict=True):
            told = element("title", f"{label}, {tell(low)} to {tell(high)}: {short(value)}")
            wide, tall = max(x(high) - x(low) - 1, 0.5), y.start - y(value)
            kind = f"bin {colour(index + i)}"
            if value:
                children.append(element("rect", told, x=x(low), y=y(value), width=wide, height=tall, class_=kind))
    rows = [
        {x_label: f"{tell(low)} to {tell(high)}"} | {label: short(counts[i]) for label, counts in parts}
        for i, (low, high) in enumerate(pairwise(edges))
    ]
    text = f"{y_label} by {x_label}; the largest bin has {short(max(v for _, c in parts for v in c))}."
    legend = [(colour(index + i), label) for i, (label, _) in enumerate(parts)]
    return Figure(title, picture(f"f{next(_numbers)}", title, text, *children), legend, table(rows))


LEVELS = 8


def heat(title: str, counts: Sequence[Sequence[int]], names: Sequence[str], x_label: str, note: str = "") -> Figure:
    """Counts by column (what x_label says) and row (a class): the more, the stronger."""
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
                # The square root, or few large counts would leave all others pale.
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
    text = f"Samples of each class that each {x_label} of {clients} owns: up to {most}."
    rows = [
        {x_label: str(i)} | {str(n): str(v) for n, v in zip(names, row, strict=True)} for i, row in enumerate(counts)
    ]
    svg = picture(f"f{next(_numbers)}", title, text, frame, *squares, height=height)
    return Figure(title, svg, [], table(rows[:ROWS]) if classes <= 40 else None, note)


def _end_to_end(values: Sequence[float]) -> Scale:
    low, high = min(values), max(values)
    return Scale(low, high, LEFT, WIDTH - RIGHT) if high > low else Scale(low - 1, high + 1, LEFT, WIDTH - RIGHT)


def _told(scale: Scale, tell: Any) -> dict[float, str]:
    return {value: tell(value) for value in scale.ticks()}


def _percent(value: float) -> str:
    return f"{100 * value:.3g}%"


def _data(series: Sequence[Series], x_label: str, tell: Any) -> Table:
    """The points of all lines, by x, as few as people read."""
    by_x: dict[float, dict[str, str]] = {}
    for one in series:
        for (x, value), spread in one.pairs:
            around = f" ± {tell(spread)}" if spread else ""
            by_x.setdefault(x, {})[one.label] = f"{tell(value)}{around}"
    labels = [one.label for one in series]
    rows = [
        {x_label: f"{x:,.4g}" if x < 1e4 else f"{x:,.0f}"} | {label: by_x[x].get(label, "-") for label in labels}
        for x in thinned(sorted(by_x), ROWS)
    ]
    return table(rows)
