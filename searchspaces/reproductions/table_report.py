"""Writes a reproduced table to table.md and table.json."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hedgerow.platform.tracking.records import write_object
from hedgerow.searchspaces.reproductions.row_result import RowResult
from hedgerow.searchspaces.reproductions.table_file import PublishedTable
from hedgerow.searchspaces.results.trials import markdown_table

PROTOCOL = (
    "the protocol is that of the source: scores on test samples choose configurations and end runs, so they are no "
    "estimates of performance on new data"
)


def all_remarks(results: Sequence[RowResult]) -> list[str]:
    """Remarks of every row, those on settings that the source leaves open, without duplicates, and the protocol."""
    remarks = [remark for result in results for remark in result.remarks()]
    remarks += dict.fromkeys(result.row.remark for result in results if result.row.remark)
    return remarks + [PROTOCOL] * any(result.finished.plan.selects_on_test for result in results)


def table_markdown(table: PublishedTable, results: Sequence[RowResult]) -> str:
    """Markdown of the table with the remarks below it."""
    rows = [row for result in results for row in result.rows()]
    remarks = "".join(f"- {remark}\n" for remark in all_remarks(results))
    return f"# {table.name}: {table.title}\n\n{markdown_table(rows)}\n{results[0].explained}\n\n{remarks}"


def table_document(table: PublishedTable, results: Sequence[RowResult]) -> dict[str, Any]:
    """All results, for JSON."""
    return {"table": table.name, "title": table.title, "lines": [result.as_dict() for result in results]}


def write_table(table: PublishedTable, results: Sequence[RowResult], folder: Path) -> None:
    """Writes table.md and table.json to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.md").write_text(table_markdown(table, results), encoding="utf-8")
    write_object(folder / "table.json", table_document(table, results), indent=2)
