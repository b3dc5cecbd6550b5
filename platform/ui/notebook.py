"""Progress of a run in a notebook: HTML that is replaced in place."""

import math
import sys
import time
from collections.abc import Callable
from html import escape
from typing import Any

from hedgerow.platform.storage.history import RoundRecord
from hedgerow.platform.tracking.summary import main_metric
from hedgerow.platform.ui.terminal import Progress

PAUSE = 0.25
"""Minimum seconds between two updates."""

WIDTH, HEIGHT = 180, 36
"""Size of a small curve, in pixels."""


def in_notebook() -> bool:
    """Whether this code runs in a Jupyter kernel, whose front end shows HTML."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class Display:
    """One place in a notebook's output."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._shown = -PAUSE

    def show(self, html: Callable[[], str], now: bool = False) -> None:
        """Replace the output, unless it was updated less than PAUSE seconds ago. now: update it in any case."""
        from IPython.display import HTML, display

        if not now and time.monotonic() - self._shown < PAUSE:
            return
        if self._handle is None:
            self._handle = display(HTML(html()), display_id=True)
        else:
            self._handle.update(HTML(html()))
        self._shown = time.monotonic()


class NotebookProgress(Progress):
    """A progress bar with the curve of the main metric on test samples."""

    def __init__(self, name: str, rounds: int):
        super().__init__(name, rounds)
        self._display = Display()
        self._round, self._text, self._note = 0, "starting", ""
        self._curve: list[tuple[int, float]] = []
        self._metric = "test_accuracy"

    def __enter__(self) -> "NotebookProgress":
        self._display.show(self._html, now=True)
        return self

    def note(self, text: str) -> None:
        self._note = text
        self._display.show(self._html, now=True)

    def __exit__(self, *ended: object) -> None:
        self._note = ""
        if ended[1] is not None:
            self._text += f"  {'interrupted' if isinstance(ended[1], KeyboardInterrupt) else 'failed'}"
        self._display.show(self._html, now=True)

    def __call__(self, record: RoundRecord) -> None:
        key = f"test_{main_metric([record])}"
        if key in record:
            self._metric = key
            self._curve.append((record["round"], record[key]))
        super().__call__(record)

    def _show(self, number: int, figures: str) -> None:
        self._round, self._text = number, figures
        self._display.show(self._html)

    def _html(self) -> str:
        # An accuracy is drawn on the scale from 0 to 1, any other metric up to its largest value.
        finite = [abs(y) for _, y in self._curve if math.isfinite(y)]
        top = 1.0 if "accuracy" in self._metric else max(finite, default=0.0) or 1.0
        points = [(x, y / top) for x, y in self._curve]
        curve = small_curve(points, self.rounds, f"{self._metric.replace('_', ' ')} by round")
        return f"<div>{bar(self.name, self._round, self.rounds, f'{self._text}  {self._note}')}<br>{curve}</div>"


def bar(name: str, done: int, of: int, text: str) -> str:
    """Line with a progress bar, as HTML."""
    return (
        f'<b>{escape(name)}</b> <progress value="{done}" max="{of}" style="width: {WIDTH}px"></progress> '
        f'<span style="font-variant-numeric: tabular-nums; white-space: pre">{done}/{of}  {escape(text)}</span>'
    )


def small_curve(points: list[tuple[int, float]], rounds: int, label: str) -> str:
    """Values between 0 and 1 over the rounds, as SVG in the colour of the text; empty for fewer than two points."""
    if len(points) < 2:
        return ""
    # Not more points than pixels.
    sample = points[:: -(-len(points) // WIDTH)]
    path = " ".join(f"{WIDTH * x / rounds:.1f},{HEIGHT * (1 - y):.1f}" for x, y in (*sample, points[-1]) if y == y)
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 -1 {WIDTH} {HEIGHT + 2}" role="img" '
        f'aria-label="{escape(label)}"><polyline points="{path}" fill="none" stroke="currentColor" '
        'stroke-width="1.5"/></svg>'
    )
