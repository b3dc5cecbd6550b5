"""What a line of a published table is: a setting, the methods compared on it, and what was printed."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.tracking.run_folder import RunFolder


@dataclass(frozen=True)
class Line:
    """One line of a table. Its name is unique within the table.

    values: its experiment file, without `algorithm`. methods: heading -> `algorithm` section, which may hold slots such
    as `objective`; the first is what the others' gains refer to. published: target, as in `evaluation.targets`, or None
    for the best accuracy, or the name of what methods report -> heading -> what was printed, such as "637" or "1000+".
    grids: heading -> the named space that was searched. remark: what the source leaves open. shows: what the curves are
    of, where that is not the accuracy or the loss. smooth: whether the source smooths its curves. unit: what costs are
    counted in: FedAvg's rounds, by their traffic, or rounds as they are. after: round -> heading -> the accuracy that
    was printed there, which is compared beside the targets, of those that ran so long. draws: a figure of its own, of
    the runs by heading, at a path without its ending. studies: rows of its own, of the same runs: what is told ->
    heading -> cell.
    """

    name: str
    title: str
    values: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    published: dict[Any, dict[str, str]] = field(default_factory=dict)
    grids: dict[str, str] = field(default_factory=dict)
    remark: str = ""
    shows: str = ""
    smooth: bool = False
    unit: Literal["transmissions", "rounds"] = "transmissions"
    after: dict[int, dict[str, str]] = field(default_factory=dict)
    draws: Callable[[dict[str, RunFolder], Path], list[Path]] | None = None
    studies: Callable[[dict[str, RunFolder]], dict[str, dict[str, str]]] | None = None


@dataclass(frozen=True)
class Table:
    """A published table, or a study. name: with its family, such as "feddyn/T2.3"."""

    name: str
    title: str
    lines: Sequence[Any]
    """Of Line, or all of StreamLine."""


Family = Callable[[], Mapping[str, Table]]


def printed_tables(
    family: str, titles: Mapping[str, str], setting: Sequence[str], line: Callable[..., Any]
) -> dict[str, Table]:
    """The tables of FAMILY.csv beside this file, by name, in its order.

    titles: of the tables. setting: the columns that tell the lines of a table apart. line: makes one of (table,
    *setting, its rows).
    """
    with (Path(__file__).parent / "papers" / f"{family}_tables.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    tables = {}
    for name, part in groupby(rows, key=itemgetter("table")):
        lines = [
            line(name, *values, list(some))
            for values, some in groupby(part, key=lambda row: tuple(row[column] for column in setting))
        ]
        tables[name] = Table(f"{family}/{name}", titles[name], lines)
    return tables


def find_lines(name: str, families: Mapping[str, Family]) -> tuple[Table, list[Any]]:
    """The table FAMILY/TABLE and its lines, or the one line of FAMILY/TABLE/LINE or FAMILY/LINE. Raises UserError."""
    family, _, rest = name.partition("/")
    if family not in families:
        raise UserError(f"{family!r} has no tables here{nearest(family, families)} (known: {', '.join(families)})")
    tables = families[family]()
    wanted, _, line_name = rest.partition("/")
    if wanted not in tables and not line_name:
        # FAMILY/LINE: in the first table that has it.
        homes = [
            table.name.partition("/")[2] for table in tables.values() if wanted in [one.name for one in table.lines]
        ]
        wanted, line_name = (homes[0], wanted) if homes else (wanted, "")
    if wanted not in tables:
        known = [*tables, *(line.name for table in tables.values() for line in table.lines)]
        raise UserError(f"{name}: there is no such table{nearest(wanted, known)} (of {family}: {', '.join(tables)})")
    table = tables[wanted]
    names = [line.name for line in table.lines]
    if line_name and line_name not in names:
        raise UserError(
            f"{name}: {table.name} has no such line{nearest(line_name, names)} (its lines: {', '.join(names)})"
        )
    return table, [line for line in table.lines if line_name in ("", line.name)]
