"""Sortable tables of a report."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"[<>≤×+-]?\s*[\d.,]+(e[+-]?\d+)?(\s*([kMGT]?B|[kMGT]|s|of|points|to)\b|\s*[%×+±(\[<]|$)")
"""Pattern of the beginning of numeric cells, which are sorted by value."""


@dataclass(frozen=True)
class HtmlTable:
    """A table. columns: (heading, whether its cells are numbers). rows: one text per column. caption: its name."""

    columns: list[tuple[str, bool]]
    rows: list[list[str]]
    caption: str = ""
    marked: frozenset[int] = frozenset()
    """Indices of highlighted rows."""
    kind: str = "table"


def table(rows: Sequence[dict[str, str]], caption: str = "", marked: Collection[int] = ()) -> HtmlTable:
    """Build a table from dictionaries; a missing key becomes "-"."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    cells = [[str(row.get(heading, "-")) for heading in headings] for row in rows]
    columns = [
        (heading, any(texts := [cell for cell in column if cell not in ("-", "")]) and all(map(NUMBER.match, texts)))
        for heading, column in zip(headings, zip(*cells, strict=True), strict=True)
    ]
    return HtmlTable(columns, cells, caption, frozenset(marked))


def seconds_text(seconds: float) -> str:
    """Duration as text, always in seconds, so that columns are comparable."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
