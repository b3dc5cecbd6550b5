"""A matplotlib figure that a notebook shows by itself. Imports matplotlib, which takes a second."""

import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure


class Drawing(Figure):
    """Notebooks show matplotlib's own figures only where pyplot was imported before."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=100)
        return out.getvalue()


# Okabe and Ito's colours can be told apart with any colour vision.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]


STYLES = ["-", "--", "-.", ":"]


def grid(number: int, width: float, height: float, columns: int = 3) -> tuple[Any, list[Any]]:
    """A figure of so many panels, of a width and a height in inches, in rows of up to `columns`; and their axes."""
    # matplotlib takes a second to import, which a run need not wait for at its start.
    from hedgerow.platform.ui.plotting import Drawing

    columns = min(columns, number)
    rows = -(-number // columns)
    figure = Drawing(figsize=(width * columns, height * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).ravel()
    for empty in places[number:]:
        empty.set_visible(False)
    return figure, list(places[:number])


def save(figure: Any, path: Path) -> list[Path]:
    """As PNG and SVG, in a folder that is made where it is not there; path: without an ending."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = [path.with_name(f"{path.name}.{ending}") for ending in ("png", "svg")]
    for file in written:
        figure.savefig(file, dpi=150)
        # Once is enough: to find the layout takes as long as to draw; with "none" all would be drawn twice.
        figure.set_layout_engine(None)
    return written
