"""Finds published tables and their rows by name: FAMILY/TABLE, FAMILY/TABLE/ROW or FAMILY/ROW."""

from functools import cache
from pathlib import Path

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest
from hedgerow.searchspaces.reproductions import REPRODUCTIONS
from hedgerow.searchspaces.reproductions.table_file import PublishedTable, TableRow, read_tables


@cache
def family_tables(family: str) -> dict[str, PublishedTable]:
    """The tables of a paper by name."""
    return read_tables(family, Path(__file__).parent / REPRODUCTIONS[family])


def all_tables() -> list[PublishedTable]:
    """The tables of all papers."""
    return [table for family in REPRODUCTIONS for table in family_tables(family).values()]


def find_rows(name: str) -> tuple[PublishedTable, list[TableRow]]:
    """The table FAMILY/TABLE and its rows, or the one row of FAMILY/TABLE/ROW or FAMILY/ROW. Raises UserError."""
    family, _, rest = name.partition("/")
    if family not in REPRODUCTIONS:
        raise UserError(
            f"{family!r} has no tables here{nearest(family, REPRODUCTIONS)} (known: {', '.join(REPRODUCTIONS)})"
        )
    tables = family_tables(family)
    wanted, _, row_name = rest.partition("/")
    if wanted not in tables and not row_name:
        # FAMILY/ROW: in the first table that has it.
        homes = [title for title, table in tables.items() if wanted in [row.name for row in table.rows]]
        wanted, row_name = (homes[0], wanted) if homes else (wanted, "")
    if wanted not in tables:
        known = [*tables, *(row.name for table in tables.values() for row in table.rows)]
        raise UserError(f"{name}: there is no such table{nearest(wanted, known)} (of {family}: {', '.join(tables)})")
    table = tables[wanted]
    names = [row.name for row in table.rows]
    if row_name and row_name not in names:
        raise UserError(
            f"{name}: {table.name} has no such line{nearest(row_name, names)} (its lines: {', '.join(names)})"
        )
    return table, [row for row in table.rows if row_name in ("", row.name)]
