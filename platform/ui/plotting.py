"""Colours of all charts, and matplotlib figures. matplotlib takes a second to import, and is imported on use."""

import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import first_line

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#b45a90", "#b98200", "#3f9fd6", "#6a4fb3", "#1d241c"]
"""Colours on white, after Okabe and Ito: distinguishable with any colour vision, and dark enough for thin lines."""

DARK_COLOURS = ["#5db4ef", "#ff9550", "#3fcfa2", "#e59cc6", "#eabd4a", "#9ad6fb", "#b7a3f2", "#f1f4ee"]
"""The same colours on black."""

INK, SOFT, GRID, CARD = COLOURS[7], "#5c6659", "#e8ebe3", "#ffffff"
"""Colours of labels, of ticks, of grid lines and of the ground."""

ACCENT, OTHERS = "#2c6e3c", "#b9c0b4"
"""Colours of a single quantity, and of everything without a colour of its own."""

BLACK = 7
"""Place of the colour of thick lines: Hedge itself, and the best expert in hindsight."""

STYLES = ["-", "--", "-.", ":"]

METHODS = ("fedavg", "fedprox", "feddyn", "scaffold", "fednova", "fedsplit", "hedge")
"""Methods whose lines have the same colour in every figure: the colour at the same place of COLOURS."""


def colour_places(labels: Iterable[str]) -> list[int]:
    """Place in COLOURS for each label. A label with the name of a method has the colour of the method."""
    labels = list(labels)
    places: dict[int, int] = {}
    for index, label in enumerate(labels):
        words = re.split(r"[^a-z0-9]+", label.lower())
        place = next((place for place, method in enumerate(METHODS) if method in words), None)
        if place is not None and place not in places.values():
            places[index] = place
    free = (place for place in free_places() if place not in places.values())
    return [places[index] if index in places else next(free) for index in range(len(labels))]


def free_places() -> Iterator[int]:
    """Places of lines that stand for nothing special, in their order."""
    return (place for place in count() if place % len(COLOURS) != BLACK)


def line_style(place: int) -> dict[str, Any]:
    """Colour, dashes and width of a place; a negative place has the colour of OTHERS."""
    colour, style = place % len(COLOURS), STYLES[place // len(COLOURS) % len(STYLES)]
    if place < 0:
        return {"color": OTHERS, "linestyle": "-", "linewidth": 2}
    return {"color": COLOURS[colour], "linestyle": style, "linewidth": 3.2 if colour == BLACK else 2}


@contextmanager
def optional_figures(warn: Callable[[str], None]) -> Iterator[None]:
    """Context manager in which an error of a figure becomes a sentence: results never depend on their figures."""
    try:
        yield
    except Exception as error:
        warn(f"figures are missing, since drawing failed ({type(error).__name__}: {first_line(error)})")


def new_figure(**options: Any) -> Any:
    """A matplotlib figure that a notebook displays even if pyplot was never imported."""
    if "IPython" in sys.modules:
        # matplotlib reads its version, which is missing while another thread, such as MLflow's, still imports it.
        with suppress(ImportError):
            import_module("IPython")
    return _figure_class()(**options)


@cache
def _figure_class() -> Any:
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_png_(self) -> bytes:
            out = io.BytesIO()
            self.savefig(out, format="png", dpi=100)
            return out.getvalue()

    return NotebookFigure


def tidy(axes: Any) -> None:
    """Leave only the lower line of the frame, without tick marks, and draw a pale grid behind the lines."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.tick_params(bottom=False, left=False, labelcolor=SOFT, which="both")
    axes.set_axisbelow(True)
    axes.grid(axis="y", color=GRID, linewidth=1)


def legend_outside(figure: Any, keys: Mapping[str, int]) -> None:
    """Draw a legend next to the panels. keys: place of the colour of each label."""
    from matplotlib.lines import Line2D

    handles = [Line2D([0], [0], label=textwrap.fill(label, 36), **line_style(place)) for label, place in keys.items()]
    if handles:
        figure.legend(handles=handles, loc="outside right upper", frameon=False, fontsize="small")


def save(figure: Any, path: Path) -> list[Path]:
    """Write a figure as PNG and SVG; returns the files. path: without extension; its folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=150)
        # The layout is computed once: it takes as long as drawing. With "none" everything would be drawn twice.
        figure.set_layout_engine(None)
    return files
