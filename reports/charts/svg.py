"""Elements, scales and axes of inline SVG. Every colour is a variable of the page's style."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

WIDTH, HEIGHT = 480.0, 300.0
"""Size of a chart in its own units. Text of 13 units is readable on a phone."""

LEFT, RIGHT, TOP, BOTTOM = 74.0, 12.0, 12.0, 48.0


def element(tag: str, *children: Any, **attributes: Any) -> Markup:
    """An SVG element. Children are escaped unless they are Markup. `class_` becomes `class`; None is omitted."""
    attribute_text = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _number(value))
        for name, value in attributes.items()
        if value is not None
    )
    inside = Markup("").join(escape(child) for child in children)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), attribute_text, inside)


def _number(value: Any) -> Any:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


def picture(name: str, title: str, text: str, *children: Markup, height: float = HEIGHT) -> Markup:
    """An SVG image with a title and a description for screen readers. name: unique in the page."""
    return element(
        "svg",
        element("title", title, id=f"{name}-title"),
        element("desc", text, id=f"{name}-text"),
        *children,
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-text",
    )


@dataclass(frozen=True)
class Scale:
    """Maps values in [low, high] to positions in [start, end]."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        share = (self._of(value) - self._of(self.low)) / (self._of(self.high) - self._of(self.low))
        return self.start + share * (self.end - self.start)

    def _of(self, value: float) -> float:
        return math.log10(max(value, 1e-300)) if self.log else value

    def ticks(self, wanted: int = 5, whole: bool = False) -> list[float]:
        """About `wanted` round numbers within the range. whole: integers."""
        if self.log:
            exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for steps in ((1,), (1, 3), (1, 2, 5)):
                values = [m * 10.0**e for e in exponents for m in steps]
                values = [v for v in values if self.low * 0.999 <= v <= self.high * 1.001]
                if len(values) >= 3:
                    break
            return values
        rough = (self.high - self.low) / wanted
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
        step = max(1.0, round(step)) if whole else step
        first = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def spanning(values: Sequence[float], start: float, end: float, log: bool = False) -> Scale:
    """A scale that covers the values with a margin."""
    low, high = min(values), max(values)
    if log and low > 0:
        room = (high / low) ** 0.05 if high > low else 1.5
        return Scale(low / room, high * room, start, end, log=True)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - room, high + room, start, end)


def axes(
    x: Scale, y: Scale, x_label: str, y_label: str, x_ticks: dict[float, str], y_ticks: dict[float, str]
) -> Markup:
    """Grid lines, ticks and labels."""
    bottom, right = max(y.start, y.end), max(x.start, x.end)
    left, top = min(x.start, x.end), min(y.start, y.end)
    parts = []
    for value, text in y_ticks.items():
        parts.append(element("line", x1=left, x2=right, y1=y(value), y2=y(value), class_="grid"))
        parts.append(element("text", text, x=left - 6, y=y(value) + 4.5, text_anchor="end"))
    for value, text in x_ticks.items():
        parts.append(element("line", x1=x(value), x2=x(value), y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(element("text", text, x=x(value), y=bottom + 18, text_anchor="middle"))
    parts.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(element("text", x_label, x=(left + right) / 2, y=bottom + 42, text_anchor="middle", class_="label"))
    middle = (top + bottom) / 2
    place = f"rotate(-90 14 {middle:.0f})"
    parts.append(element("text", y_label, x=14.0, y=middle, transform=place, text_anchor="middle", class_="label"))
    return element("g", *parts)


def path(points: Sequence[tuple[float, float]], closed: bool = False) -> str:
    """Attribute `d` of an SVG path through the points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points) + ("Z" if closed else "")


def short(value: float) -> str:
    """Text of a tick: 1.2M for 1200000, 0.05 for 0.05."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"
