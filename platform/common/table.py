"""Tables of numbers, written for a terminal, a page, Markdown or a CSV file."""

import csv
import math
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from hedgerow.platform.common.numbers import Summary, column, name_of, unit_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

NUMBER = re.compile(r"[<>≤×+-]?\s*(?!0\d)[\d.,]+(e[+-]?\d+)?(\s*([kMGT]?B|[kMGT]|s|of|points)\b|\s*[%×+±(\[<]|$)|-?$")
"""Texts that are aligned right and sorted by value, and those of missing values."""

WIDE = 1000
"""Width of output that does not go to a terminal, in characters: its tables are never cut off."""

ROOM = 24
"""Least width of a column whose texts are cut to one line, before other columns are left out."""


def wide_console() -> "Console":
    """A console as wide as the terminal; in a pipe or a file wide enough for every column."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    name: key of its values in the rows. heading: by default, `numbers.name_of` the name. unit: see `numbers.number`; by
    default, `numbers.unit_of` the name. better: "max" or "min" emphasises the best value.
    """

    name: str
    heading: str = ""
    unit: str | None = None
    better: str = ""

    @property
    def text(self) -> str:
        """Heading for people."""
        return self.heading or name_of(self.name)


class Table:
    """Rows of values by column name. A missing value is "-".

    columns: those that need more than their name; the order is that of the rows. targets: shares to which a smaller
    share is not rounded. marked: indices of highlighted rows.
    """

    kind = "table"

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        title: str = "",
        columns: Sequence[Column] = (),
        targets: Sequence[float] = (),
        marked: Collection[int] = (),
    ):
        known = {one.name: one for one in columns}
        names = dict.fromkeys(name for row in rows for name in row)
        self.rows, self.title, self.targets, self.marked = list(rows), title, targets, marked
        self.columns = [known.get(name) or Column(name) for name in names]

    @cached_property
    def cells(self) -> dict[str, list[str]]:
        """Texts of each column by its name."""
        return {
            one.name: column([row.get(one.name) for row in self.rows], self._unit(one), self.targets)
            for one in self.columns
        }

    @property
    def texts(self) -> list[dict[str, str]]:
        """Texts of each row by heading."""
        return [{one.text: self.cells[one.name][i] for one in self.columns} for i in range(len(self.rows))]

    @cached_property
    def numeric(self) -> set[str]:
        """Names of the columns of numbers."""
        return {
            one.name
            for one in self.columns
            if all(
                _value(row.get(one.name)) is not None or NUMBER.match(text)
                for row, text in zip(self.rows, self.cells[one.name], strict=True)
            )
        }

    @cached_property
    def best(self) -> set[tuple[int, str]]:
        """Row and column name of the best values."""
        places = set()
        for one in self.columns:
            values = [_value(row.get(one.name)) for row in self.rows]
            finite = [value for value in values if value is not None and math.isfinite(value)]
            if one.better and len(set(finite)) > 1:
                top = (max if one.better == "max" else min)(finite)
                places |= {(i, one.name) for i, value in enumerate(values) if value == top}
        return places

    @staticmethod
    def _unit(one: Column) -> str:
        return unit_of(one.name) if one.unit is None else one.unit

    def print(self, console: "Console | None" = None, importance: Sequence[str] = ()) -> None:
        """Print the table. On a narrow terminal texts wrap between words, then columns are left out.

        importance: names of columns, the most important one first; the others follow from left to right. The first
        column stays.
        """
        from rich.text import Text

        console = console or wide_console()
        widths = self._widths(console.width, importance)
        console.print(self._drawn(widths))
        if left_out := [one.text for one in self.columns if one.name not in widths]:
            console.print(Text(f"columns for which the terminal is too narrow (--json has all): {', '.join(left_out)}"))

    def lines(self, width: int, importance: Sequence[str], cut: str) -> "RichTable":
        """The table without borders and with one line per row; rows that are not marked are dim.

        importance: see `print`. cut: name of the column whose texts are cut off at the width.
        """
        return self._drawn(self._widths(width, importance, cut), cut)

    def _widths(self, width: int, importance: Sequence[str], cut: str = "") -> dict[str, int]:
        """Widths of the columns that fit, by name."""
        from rich.cells import cell_len

        def least(one: Column) -> int:
            if cut:
                return min(full[one.name], ROOM) if one.name == cut else full[one.name]
            cells = self.cells[one.name]
            whole = cells if one.name in self.numeric else [word for text in cells for word in text.split()]
            return max(map(cell_len, (*one.text.split(), *whole)), default=0)

        full = {one.name: max(map(cell_len, (one.text, *self.cells[one.name]))) for one in self.columns}
        widths = {one.name: least(one) for one in self.columns}
        # Border and padding take three characters of a column; without borders, two characters separate columns.
        gap, edge = (2, -2) if cut else (3, 1)
        ranks = [name for name in dict.fromkeys([*list(widths)[:1], *importance, *widths]) if name in widths]
        while len(ranks) > 1 and edge + sum(gap + widths[name] for name in ranks) > width:
            del widths[ranks.pop()]
        room = width - edge - sum(gap + least for least in widths.values())
        for name, narrow in widths.items():
            more = max(0, min(room, full[name] - narrow))
            room -= more
            widths[name] = min(narrow + more, width - 4)
        return widths

    def _drawn(self, widths: Mapping[str, int], cut: str = "") -> "RichTable":
        from rich.table import Table as RichTable
        from rich.text import Text

        style: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold dim"} if cut else {}
        drawn = RichTable(title=Text(self.title) if self.title else None, title_justify="left", **style)
        shown = [one for one in self.columns if one.name in widths]
        for one in shown:
            justify: Any = "right" if one.name in self.numeric else "left"
            drawn.add_column(Text(one.text), justify=justify, width=widths[one.name], overflow="fold")
        for i in range(len(self.rows)):
            texts = {one.name: self.cells[one.name][i] for one in shown}
            if cut in texts:
                texts[cut] = shorten(texts[cut], widths[cut], placeholder=" …", break_long_words=False)
            cells = [Text(text, style="bold" if (i, name) in self.best else "") for name, text in texts.items()]
            drawn.add_row(*cells, style="dim" if cut and i not in self.marked else "")
        return drawn

    def html(self) -> Markup:
        """The table as HTML; the class "n" aligns numbers, "best" and "marked" emphasise cells and rows."""

        def row(tag: str, texts: Sequence[str], i: int) -> Markup:
            classes = [
                " ".join(["n"] * (one.name in self.numeric) + ["best"] * ((i, one.name) in self.best))
                for one in self.columns
            ]
            cell = Markup("<{0}{1}>{2}</{0}>")
            return Markup("<tr{}>{}</tr>\n").format(
                Markup(' class="marked"') if i in self.marked else "",
                Markup("").join(
                    cell.format(tag, Markup(' class="{}"').format(names) if names else "", text)
                    for names, text in zip(classes, texts, strict=True)
                ),
            )

        head = row("th", [one.text for one in self.columns], -1)
        rows = enumerate(zip(*self.cells.values(), strict=True))
        body = Markup("").join(row("td", texts, i) for i, texts in rows)
        caption = Markup("<caption>{}</caption>").format(self.title) if self.title else ""
        return Markup("<table>{}<thead>{}</thead><tbody>{}</tbody></table>").format(caption, head, body)

    def markdown(self) -> str:
        """The table in Markdown; empty without rows."""
        headings = [one.text for one in self.columns]
        rows = zip(*self.cells.values(), strict=True)
        lines = [headings, ["---"] * len(headings), *rows] if self.rows else []
        escaped = ([" ".join(cell.replace("|", "\\|").split()) for cell in line] for line in lines)
        return "".join(f"| {' | '.join(line)} |\n" for line in escaped)

    def csv(self, file: Path) -> None:
        """Write every column with full precision; None becomes an empty field."""
        with file.open("w", newline="", encoding="utf-8") as out:
            writer = csv.DictWriter(out, [one.name for one in self.columns])
            writer.writeheader()
            writer.writerows(self.rows)


def _value(cell: Any) -> float | None:
    """Number of a cell by which columns are compared; None for texts, settings and missing values."""
    value = cell.mean if isinstance(cell, Summary) else cell
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
