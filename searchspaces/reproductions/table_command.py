"""Bodies of the commands `table`, and `search` for a row of a table."""

from collections.abc import Sequence
from pathlib import Path

import click

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.tracking.run_folder import RunFolder, names_in_job
from hedgerow.platform.ui.command_output import CommandOutput, print_warning
from hedgerow.platform.ui.plotting import optional_figures
from hedgerow.platform.ui.terminal import print_rows
from hedgerow.searchspaces.reproductions import REPRODUCTIONS
from hedgerow.searchspaces.reproductions.published import family_tables, find_rows
from hedgerow.searchspaces.reproductions.row_result import RowResult
from hedgerow.searchspaces.reproductions.row_search import RowSearch, plan_row
from hedgerow.searchspaces.reproductions.shared_trainings import taken_over, trained, trained_before
from hedgerow.searchspaces.reproductions.table_file import PublishedTable, TableRow
from hedgerow.searchspaces.reproductions.table_plots import draw_table
from hedgerow.searchspaces.reproductions.table_report import all_remarks, table_document, write_table
from hedgerow.searchspaces.tune.search_command import search_all, search_table
from hedgerow.searchspaces.tune.search_runner import Data, check_search, finish_started
from hedgerow.searchspaces.tune.search_runner import search as run_search


def search_files_or_row(
    files: Sequence[Path],
    overrides: Sequence[str],
    data_root: Path | None,
    address: str | None,
    job: str | None = None,
) -> CommandOutput:
    """Run searches from files, or a row of a table if the name is not a file and starts with a family of tables."""
    if len(files) == 1 and not files[0].exists() and files[0].parts[0] in REPRODUCTIONS:
        return run_table(plan_table(files[0].as_posix(), overrides, [], False, None), data_root, address, job)
    return search_all(files, overrides, data_root, address, job)


def list_show_or_run(
    name: str,
    overrides: Sequence[str],
    methods: Sequence[str],
    grid: bool,
    show: bool,
    report: bool,
    output: Path | None,
    data_root: Path | None,
    address: str | None,
    job: str | None = None,
) -> CommandOutput:
    """List the rows of tables if `name` is a family or empty; otherwise report, show or run a table or a row."""
    if "/" not in name:
        return list_lines(name)
    if report:
        return report_table(name, output or Path("runs"))
    plans = plan_table(name, overrides, methods, grid, output)
    return show_plans(plans) if show else run_table(plans, data_root, address, job)


def list_lines(name: str) -> CommandOutput:
    """List the lines of a family's tables, or of all tables. Raises UserError."""
    if name and name not in REPRODUCTIONS:
        raise UserError(f"{name!r} is not a family of tables (known: {', '.join(REPRODUCTIONS)})")
    tables = [table for family in ([name] if name else REPRODUCTIONS) for table in family_tables(family).values()]

    def render() -> None:
        for table in tables:
            click.echo(f"{table.name}: {table.title}")
            for row in table.rows:
                click.echo(f"  {table.name}/{row.name}{_about(row)}")

    documents = [
        {
            "name": table.name,
            "title": table.title,
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
    targets = ", ".join(f"{target:g}" for target in row.published if isinstance(target, float))
    return f"  (targets {targets})" if targets else ""


def show_plans(plans: Sequence[RowSearch]) -> CommandOutput:
    """Show the experiment files of lines."""
    text = "---\n".join(plan.search.dump() for plan in plans)
    return CommandOutput({"files": [plan.search.resolved for plan in plans]}, lambda: click.echo(text, nl=False))


def plan_table(
    name: str, changed: Sequence[str], methods: Sequence[str], grid: bool, output: Path | None
) -> list[RowSearch]:
    """Plan the searches of a table's rows, or of one row; see `plan_row`. Raises UserError."""
    table, rows = find_rows(name)
    folder = str(output) if output else None
    return [plan for row in rows for plan in plan_row(table, row, changed, methods, grid, folder)]


def run_table(
    plans: Sequence[RowSearch], data_root: Path | None, address: str | None, job: str | None = None
) -> CommandOutput:
    """Run the lines of a table and print it next to the published numbers; reports why some lines cannot run.

    job: identifier of a job that may have started some of the searches before.
    """
    ready: list[tuple[RowSearch, Data]] = []
    absent: list[str] = []
    for plan in plans:
        try:
            # All methods of a stream use the same data, which are built once.
            same = ready and ready[-1][0].row is plan.row
            ready.append((plan, ready[-1][1] if same else check_search(plan.search, data_root)))
        except UserError as error:
            absent.append(f"{plan.name}: {error}")
    if not ready:
        raise UserError(absent[0])
    results = []
    output = Path(ready[0][0].search.experiment.output)
    runs = trained_before(output, [plan.name for plan, _ in ready])
    searches = [plan.search.experiment for plan, _ in ready]
    names = [None for _ in ready] if job is None else names_in_job(searches, job)
    for (plan, data), name in zip(ready, names, strict=True):
        note = plan.note
        sources = taken_over(plan.search, data, runs)
        note["taken_from"] = {number: str(run.path.relative_to(output)) for number, run in sources.items()}
        with search_table(plan.search) as table:
            finished = finish_started(plan.search, name, table, address)
            if finished is None:
                finished = run_search(
                    plan.search, data_root, table, address, data, {"table": note}, begun=sources, name=name
                )
        runs |= trained(finished.folder)
        results.append(RowResult.read(plan.row, finished.folder, plan.headings[0]))
        if finished.warning:
            click.echo(f"  warning: {finished.warning}", err=True)
    for sentence in absent:
        click.echo(f"not run: {sentence}", err=True)
    lines = list(dict.fromkeys(plan.row.name for plan in plans))
    name = plans[0].table.name + (f"/{lines[0]}" if len(lines) == 1 else "")
    return _closing(name, plans[0].table, results, output, absent)


def report_table(name: str, output: Path) -> CommandOutput:
    """Report a table from the last finished run of each of its lines under `output`. Raises UserError."""
    table, results = find_results(name, output)
    return _closing(name, table, results, output)


def find_results(name: str, output: Path) -> tuple[PublishedTable, list[RowResult]]:
    """Returns a table and the last finished runs of its rows under `output`. Raises UserError if there are none."""
    table, rows = find_rows(name)
    latest = _latest(output)
    results: list[RowResult] = []
    for row in rows:
        full = f"{table.name}/{row.name}"
        names = {heading: f"{full}/{heading}" for heading in row.methods} if row.is_stream else {"": full}
        results += [RowResult.read(row, latest[name], heading) for heading, name in names.items() if name in latest]
    if not results:
        raise UserError(
            f"{name}: no finished run is stored under {output}; run it first, or set the folder with --output"
        )
    return table, results


def _latest(output: Path) -> dict[str, RunFolder]:
    """Last finished run of each line, by the name of the line."""
    runs = []
    for file in output.glob("*/run.json"):
        try:
            record = RunFolder(file.parent).record()
        except UserError as error:
            print_warning(f"{error}; the run is skipped")
            continue
        if record.get("table") and record["status"] == "finished":
            runs.append((record["created"], record["table"]["line"], RunFolder(file.parent)))
    return {line: folder for _, line, folder in sorted(runs, key=lambda run: run[:2])}


def _closing(
    name: str, table: PublishedTable, results: list[RowResult], output: Path, absent: Sequence[str] = ()
) -> CommandOutput:
    """Output of a table: its rows, remarks and files. absent: reasons why some lines were not run."""
    folder = output / "tables" / name.replace("/", "-")
    write_table(table, results, folder)
    figures: list[Path] = []
    with optional_figures(print_warning):
        figures = draw_table(results, folder)
    rows, remarks = [row for result in results for row in result.rows()], all_remarks(results)

    def render() -> None:
        print_rows(rows, f"{table.name}: {table.title}")
        click.echo(results[0].explained)
        for remark in remarks:
            click.echo(f"- {remark}")
        click.echo(f"runs: {output}\ntable: {folder / 'table.md'}, table.json")
        for figure in figures:
            if figure.suffix == ".png":
                click.echo(f"  figure: {figure}")

    document = {
        **table_document(table, results),
        "rows": rows,
        "explained": results[0].explained,
        "remarks": remarks,
        "not_run": list(absent),
        "folder": folder,
        "figures": figures,
    }
    return CommandOutput(document, render)
