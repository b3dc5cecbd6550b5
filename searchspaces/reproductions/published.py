"""Finds published tables and their rows by name: FAMILY/TABLE, FAMILY/TABLE/ROW or FAMILY/ROW."""

from functools import cache
from pathlib import Path

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.registry import nearest
from hedgerow.searchspaces.reproductions import REPRODUCTIONS
from hedgerow.searchspaces.reproductions.table_file import PublishedTable, TableRow, read_tables


@cache
def family_tables(family: str) -> dict[str, PublishedTable]:
    """Tables of a paper by name."""
    return read_tables(family, Path(__file__).parent / REPRODUCTIONS[family])


def all_tables() -> list[PublishedTable]:
    """Tables of all papers."""
    return [table for family in REPRODUCTIONS for table in family_tables(family).values()]


def find_rows(name: str) -> tuple[PublishedTable, list[TableRow]]:
    """Finds the table FAMILY/TABLE and its rows, or the row FAMILY/TABLE/ROW or FAMILY/ROW. Raises UserError."""
    family, _, rest = name.partition("/")
    if family not in REPRODUCTIONS:
        raise UserError(
            f"{family!r} is not a family of tables{nearest(family, REPRODUCTIONS)} (known: {', '.join(REPRODUCTIONS)})"
        )
    tables = family_tables(family)
    table_name, _, row_name = rest.partition("/")
    if table_name not in tables and not row_name:
        # FAMILY/ROW: the first table that has this row.
        homes = [title for title, table in tables.items() if table_name in [row.name for row in table.rows]]
        table_name, row_name = (homes[0], table_name) if homes else (table_name, "")
    if table_name not in tables:
        known = [*tables, *(row.name for table in tables.values() for row in table.rows)]
        raise UserError(
            f"{name}: there is no such table{nearest(table_name, known)} (tables of {family}: {', '.join(tables)})"
        )
    table = tables[table_name]
    names = [row.name for row in table.rows]
    if row_name and row_name not in names:
        raise UserError(
            f"{name}: {table.name} has no such line{nearest(row_name, names)} (its lines: {', '.join(names)})"
        )
    return table, [row for row in table.rows if row_name in ("", row.name)]
