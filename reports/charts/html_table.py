"""Tables of a report, which the page can sort."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"[<>≤×+-]?\s*[\d.,]+(e[+-]?\d+)?(\s*([kMGT]?B|[kMGT]|s|of|points|to)\b|\s*[%×+±(\[<]|$)")
"""Beginning of cells that are sorted by size."""


@dataclass(frozen=True)
class HtmlTable:
    """columns: (heading, whether its cells are numbers). rows: a text per column. caption: the name of the table."""

    columns: list[tuple[str, bool]]
    rows: list[list[str]]
    caption: str = ""
    marked: frozenset[int] = frozenset()
    """Rows that are highlighted."""
    kind: str = "table"


def table(rows: Sequence[dict[str, str]], caption: str = "", marked: Collection[int] = ()) -> HtmlTable:
    """A table of dictionaries; a missing key is "-"."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    cells = [[str(row.get(heading, "-")) for heading in headings] for row in rows]
    columns = [
        (heading, any(known := [cell for cell in column if cell not in ("-", "")]) and all(map(NUMBER.match, known)))
        for heading, column in zip(headings, zip(*cells, strict=True), strict=True)
    ]
    return HtmlTable(columns, cells, caption, frozenset(marked))


def seconds_text(seconds: float) -> str:
    """A time, always in seconds, so that columns are comparable."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
