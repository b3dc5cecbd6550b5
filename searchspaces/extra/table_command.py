"""Body of the command `table`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from hedgerow.platform.common.errors import UserError, on_full_disk
from hedgerow.platform.common.numbers import target_heading
from hedgerow.platform.common.registry import nearest
from hedgerow.platform.common.table import Table
from hedgerow.platform.config.model_selection import uses_test_samples
from hedgerow.platform.storage.atomic_file import write_whole
from hedgerow.platform.storage.sealed_json import write_object
from hedgerow.platform.tracking.run_folder import RunFolder, names_in_job
from hedgerow.platform.tracking.summary import target_label
from hedgerow.platform.ui.command_output import CommandOutput, print_warning
from hedgerow.searchspaces.extra.shared_trainings import taken_over, trained, trained_before
from hedgerow.searchspaces.extra.table_file import FAMILIES, PublishedTable, TableRow, all_tables, find_rows, verdict_on
from hedgerow.searchspaces.extra.table_result import RowResult, read_result
from hedgerow.searchspaces.extra.table_search import RowSearch, row_searches
from hedgerow.searchspaces.results.finished_search import FinishedSearch
from hedgerow.searchspaces.tune.search_command import search_or_resume
from hedgerow.searchspaces.tune.search_runner import Data, check_search

PROTOCOL = (
    "the protocol is that of the source: scores on test samples choose configurations and end runs, so they are no "
    "estimates of performance on new data"
)


def list_lines(family: str) -> CommandOutput:
    """List the verdicts and the lines of a family's tables, or of all tables. Raises UserError."""
    if family and family not in FAMILIES:
        raise UserError(
            f"{family!r} is not a family of tables{nearest(family, FAMILIES)} (known: {', '.join(FAMILIES)})"
        )
    tables = [table for table in all_tables() if table.name.startswith(f"{family}/" if family else "")]

    def render() -> None:
        for table in tables:
            click.echo(f"{table.name}: {table.title} ({verdict_on(table.name)})")
            for row in table.rows:
                click.echo(f"  {table.name}/{row.name}{_about(row)}")

    documents = [
        {
            "name": table.name,
            "title": table.title,
            "verdict": verdict_on(table.name),
            "lines": [
                {"name": f"{table.name}/{row.name}", "title": row.title, "methods": list(row.methods)}
                for row in table.rows
            ],
        }
        for table in tables
    ]
    return CommandOutput({"tables": documents}, render)


def _about(row: TableRow) -> str:
    if row.is_stream:
        return f"  ({', '.join(row.methods)})"
    metric = row.values.get("evaluation", {}).get("target_metric", "test_accuracy")
    targets = ", ".join(target_heading(target_label(one, metric)) for one in row.published if isinstance(one, float))
    return f"  (targets {targets})" if targets else ""


def table_searches(
    name: str, changed: Sequence[str], methods: Sequence[str], grid: bool, output: Path | None
) -> list[RowSearch]:
    """The searches of a table's rows, or of one row; see `row_searches`. Raises UserError."""
    table, rows = find_rows(name)
    folder = str(output) if output else None
    return [one for row in rows for one in row_searches(table, row, changed, methods, grid, folder)]


def show_searches(searches: Sequence[RowSearch]) -> CommandOutput:
    """Show the experiment files of lines."""
    text = "---\n".join(one.search.dump() for one in searches)
    return CommandOutput({"files": [one.search.resolved for one in searches]}, lambda: click.echo(text, nl=False))


def run_table(
    searches: Sequence[RowSearch], data_root: Path | None, address: str | None, job: str | None = None
) -> CommandOutput:
    """Run the lines of a table and print it next to the published numbers; reports why some lines cannot run.

    job: identifier of a job that may have started some of the searches before.
    """
    ready: list[tuple[RowSearch, Data]] = []
    absent: list[str] = []
    for one in searches:
        try:
            # All methods of a stream use the same data, which are built once.
            same = ready and ready[-1][0].row is one.row
            ready.append((one, check_search(one.search, data_root, ready[-1][1] if same else None)))
        except UserError as error:
            absent.append(f"{one.name}: {error}")
    if not ready:
        raise UserError(absent[0])
    results = []
    output = Path(ready[0][0].search.experiment.output)
    runs = trained_before(output, [one.name for one, _ in ready])
    names = [None for _ in ready] if job is None else names_in_job([one.search.experiment for one, _ in ready], job)
    for (one, data), name in zip(ready, names, strict=True):
        sources = taken_over(one.search, data, runs)
        taken = {number: str(run.path.relative_to(output)) for number, run in sources.items()}
        note = {"table": {**one.note, "taken_from": taken}}
        finished = search_or_resume(one.search, data_root, address, data, name, note, sources)
        runs |= trained(finished.folder)
        results.append(read_result(one.row, finished.folder))
        if finished.warning:
            click.echo(f"  warning: {finished.warning}", err=True)
    for sentence in absent:
        click.echo(f"not run: {sentence}", err=True)
    lines = list(dict.fromkeys(one.row.name for one in searches))
    name = searches[0].table.name + (f"/{lines[0]}" if len(lines) == 1 else "")
    return _closing(name, searches[0].table, results, output, absent)


def report_table(name: str, output: Path) -> CommandOutput:
    """Report a table from the last finished or else interrupted run of each of its lines. Raises UserError."""
    table, rows = find_rows(name)
    runs = []
    for file in output.glob("*/run.json"):
        try:
            record = RunFolder(file.parent).record()
        except UserError as error:
            print_warning(f"{error}; the run is skipped")
            continue
        if record.get("table") and (search := FinishedSearch.read(RunFolder(file.parent))).is_presentable:
            runs.append((record["status"] == "finished", record["created"], record["table"]["line"], search.folder))
    latest = {line: folder for *_, line, folder in sorted(runs, key=lambda run: run[:2])}
    results = []
    for row in rows:
        full = f"{table.name}/{row.name}"
        lines = [f"{full}/{heading}" for heading in row.methods] if row.is_stream else [full]
        results += [read_result(row, latest[line]) for line in lines if line in latest]
    if not results:
        raise UserError(f"{name}: no run that has ended is stored under {output}; run it first, or set --output")
    return _closing(name, table, results, output)


def _closing(
    name: str, table: PublishedTable, results: list[RowResult], output: Path, absent: Sequence[str] = ()
) -> CommandOutput:
    """Output of a table, which is also written to table.md and table.json. absent: reasons why lines were not run."""
    folder = output / "tables" / name.replace("/", "-")
    remarks = [remark for result in results for remark in result.remarks()]
    remarks += dict.fromkeys(result.row.remark for result in results if result.row.remark)
    remarks += [PROTOCOL] * any(uses_test_samples(one.metric) for one in results if not one.row.is_stream)
    document: dict[str, Any] = {
        "table": table.name,
        "title": table.title,
        "rows": [row for result in results for row in result.rows()],
        "explained": results[0].explained,
        "remarks": remarks,
        "lines": [result.as_dict() for result in results],
    }
    heading, notes = f"{table.name}: {table.title}", "".join(f"- {remark}\n" for remark in remarks)
    text = f"# {heading}\n\n{Table(document['rows']).markdown()}\n{document['explained']}\n\n{notes}"
    with on_full_disk(f"`hedgerow table {name} --report --output {output}` prints the table"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / "table.md", text)
        write_object(folder / "table.json", document, indent=2)

    def render() -> None:
        Table(document["rows"], heading).print()
        click.echo(f"{document['explained']}\n{notes}runs: {output}\ntable: {folder / 'table.md'}, table.json")
        click.echo(f"figures: hedgerow report {folder}")

    return CommandOutput({**document, "not_run": list(absent), "folder": folder}, render)
