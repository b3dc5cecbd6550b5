"""Tables of a report: rows of texts, which the page lets people sort."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"[<>≤×+-]?\s*[\d.,]+(e[+-]?\d+)?(\s*([kMGT]?B|[kMGT]|s|of|points|to)\b|\s*[%×+±(\[<]|$)")
"""How cells begin that are sorted by size."""


@dataclass(frozen=True)
class Table:
    """columns: (heading, whether its cells are numbers). rows: a text per column. caption: for those who hear it."""

    columns: list[tuple[str, bool]]
    rows: list[list[str]]
    caption: str = ""
    marked: frozenset[int] = frozenset()
    """Rows that stand out."""
    kind: str = "table"


def table(rows: Sequence[dict[str, str]], caption: str = "", marked: Collection[int] = ()) -> Table:
    """Of dictionaries; a key that a row has not is "-"."""
    headings = list(dict.fromkeys(heading for row in rows for heading in row))
    cells = [[str(row.get(heading, "-")) for heading in headings] for row in rows]
    columns = [
        (heading, any(known := [cell for cell in column if cell not in ("-", "")]) and all(map(NUMBER.match, known)))
        for heading, column in zip(headings, zip(*cells, strict=True), strict=True)
    ]
    return Table(columns, cells, caption, frozenset(marked))


def seconds_text(seconds: float) -> str:
    """A time as a person reads it, always in seconds: columns stay comparable."""
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
