"""A matplotlib figure that a notebook shows by itself. Imports matplotlib, which takes a second."""

import io

from matplotlib.figure import Figure


class Drawing(Figure):
    """Notebooks show matplotlib's own figures only where pyplot was imported before."""

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=100)
        return out.getvalue()
