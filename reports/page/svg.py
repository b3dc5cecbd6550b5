"""Charts as SVG inside a page: colours are variables of its style, and texts stay texts."""

import io
import re
from itertools import count
from typing import Any

from markupsafe import Markup

from hedgerow.platform.ui.charts import TIP, Chart
from hedgerow.platform.ui.plotting import ACCENT, CARD, COLOURS, GRID, OTHERS, SOFT

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 480.0, 74.0, 12.0, 12.0, 48.0
"""Width of a chart and its margins, in its own units. Text of 13 units is readable on a phone."""

VARIABLES = {colour: f"s{place}" for place, colour in enumerate(COLOURS)} | {
    ACCENT: "accent", CARD: "card", GRID: "grid", OTHERS: "others", SOFT: "soft",
}  # fmt: skip
"""Variable of the page's style for each colour of matplotlib's figures."""

STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "hedgerow", "font.size": 13, "text.parse_math": False}

_numbers = count(1)


def svg(chart: Chart) -> Markup:
    """The chart as an SVG image with a title and a description for screen readers."""
    # matplotlib takes a second to import.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    file, height = io.StringIO(), chart.height
    with rc_context(STYLE):
        figure = Figure(figsize=(WIDTH / 72, height / 72))
        wide, high = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM
        axes = figure.add_axes((LEFT / WIDTH, BOTTOM / height, wide / WIDTH, high / height))
        chart.draw(axes)
        # Next to the longest tick labels, also where the page enlarges its texts.
        axes.xaxis.set_label_coords(0.5, -30 / high)
        axes.yaxis.set_label_coords(-56 / wide, 0.5)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    # Its head has a style that would hold for the whole page.
    drawn = file.getvalue().partition("</style>")[2].partition("</defs>")[2].rpartition("</svg>")[0]
    drawn = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL).replace("xlink:href", "href")
    drawn = re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", drawn)
    drawn = re.sub(r'<g id="[^"]*">', "<g>", re.sub(r' transform="rotate\(-0 [^"]*"', "", drawn))
    drawn = re.sub(r' d="[^"]*"', _shortened, drawn)
    drawn = re.sub(r' style="[^"]*"', _themed, re.sub(r">\s+<", "><", drawn))
    name = f"f{next(_numbers)}"
    head = Markup(
        '<svg viewBox="0 0 {:g} {:g}" role="img" aria-labelledby="{name}-title" aria-describedby="{name}-text">'
        '<title id="{name}-title">{}</title><desc id="{name}-text">{}</desc>'
    ).format(WIDTH, height, chart.title, chart.text, name=name)
    return head + Markup(drawn) + Markup("</svg>")


def _shortened(path: re.Match[str]) -> str:
    """The outline with one decimal."""
    return " " + " ".join(re.sub(r"(\.\d)\d+", r"\1", path[0]).split())


def _themed(style: re.Match[str]) -> str:
    """The style with colours of the page, and without its font."""
    text = re.sub(r"font-size: 13px; |font-family: [^;]*; ", "", style[0])
    return re.sub(r"#[0-9a-f]{6}", lambda colour: f"var(--{VARIABLES[colour[0]]})", text)
