"""Bodies of the commands `table`, and `search` for a row of a table."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from hedgerow.platform.common.errors import UserError
from hedgerow.platform.tracking.run_folder import RunFolder
from hedgerow.platform.ui.command_output import CommandOutput
from hedgerow.platform.ui.terminal import print_rows
from hedgerow.searchspaces.reproductions import FAMILIES, Line, Table, find_lines
from hedgerow.searchspaces.reproductions.row_result import LineResult, Result, all_remarks, as_document, write
from hedgerow.searchspaces.reproductions.row_search import LinePlan, plan_line
from hedgerow.searchspaces.reproductions.shared_trainings import taken_over, trained, trained_before
from hedgerow.searchspaces.reproductions.stream_row_result import StreamResult, draw_results
from hedgerow.searchspaces.reproductions.stream_row_search import StreamLine, StreamPlan, plan_streams
from hedgerow.searchspaces.reproductions.table_plots import draw_tables
from hedgerow.searchspaces.tune.search_command import search_all, search_table
from hedgerow.searchspaces.tune.search_runner import Data, check_search
from hedgerow.searchspaces.tune.search_runner import search as run_search

Plan = LinePlan | StreamPlan


def search_files_or_row(
    files: Sequence[Path], overrides: Sequence[str], data_root: Path | None, address: str | None
) -> CommandOutput:
    """Run searches from files, or a row of a table: a name that is no file and begins with a family of tables."""
    if len(files) == 1 and not files[0].exists() and files[0].parts[0] in FAMILIES:
        return run_table(plan_table(files[0].as_posix(), overrides, [], False, None), data_root, address)
    return search_all(files, overrides, data_root, address)


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
) -> CommandOutput:
    """List the rows of tables where `name` is a family or empty; else report, show or run a table or one row."""
    if "/" not in name:
        return list_lines(name)
    if report:
        return report_table(name, output or Path("runs"))
    plans = plan_table(name, overrides, methods, grid, output)
    return show_plans(plans) if show else run_table(plans, data_root, address)


def list_lines(name: str) -> CommandOutput:
    """The lines of a family's tables, or of all. Raises UserError."""
    if name and name not in FAMILIES:
        raise UserError(f"there are no tables of {name!r} (known: {', '.join(FAMILIES)})")
    tables = [table for family in ([name] if name else FAMILIES) for table in FAMILIES[family]().values()]

    def render() -> None:
        for table in tables:
            click.echo(f"{table.name}: {table.title}")
            for line in table.lines:
                click.echo(f"  {table.name}/{line.name}{_what(line)}")

    documents = [
        {
            "name": table.name,
            "title": table.title,
            "lines": [
                {"name": f"{table.name}/{line.name}", "title": line.title, "methods": list(line.methods)}
                for line in table.lines
            ],
        }
        for table in tables
    ]
    return CommandOutput({"tables": documents}, render)


def _what(line: Line | StreamLine) -> str:
    if isinstance(line, StreamLine):
        return f"  ({', '.join(line.methods)})"
    targets = ", ".join(f"{target:g}" for target in line.published if isinstance(target, float))
    return f"  (targets {targets})" if targets else ""


def show_plans(plans: Sequence[Plan]) -> CommandOutput:
    """The experiment files of lines."""
    text = "---\n".join(plan.search.dump() for plan in plans)
    return CommandOutput({"files": [plan.search.resolved for plan in plans]}, lambda: click.echo(text, nl=False))


def plan_table(
    name: str, changed: Sequence[str], methods: Sequence[str], grid: bool, output: Path | None
) -> Sequence[Plan]:
    """The sweeps of a table's lines, or of one line; see `plan_line` and `plan_streams`. Raises UserError."""
    table, lines = find_lines(name, FAMILIES)
    folder = str(output) if output else None
    if isinstance(lines[0], StreamLine):
        if grid:
            raise UserError(
                f"--grid: the experts of {table.name} are its published grids already; leave the option out"
            )
        return [plan for line in lines for plan in plan_streams(table, line, changed, methods, folder)]
    return [plan_line(table, line, changed, methods, grid, folder) for line in lines]


def run_table(plans: Sequence[Plan], data_root: Path | None, address: str | None) -> CommandOutput:
    """Run the lines of a table and print it beside the published numbers; of lines that cannot run, it is told why."""
    ready: list[tuple[Plan, Data]] = []
    absent: list[str] = []
    for plan in plans:
        try:
            # All methods of a stream learn the same one: it is made once.
            same = ready and isinstance(plan, StreamPlan) and ready[-1][0].line is plan.line
            ready.append((plan, ready[-1][1] if same else check_search(plan.search, data_root)))
        except UserError as error:
            absent.append(f"{plan.name}: {error}")
    if not ready:
        raise UserError(absent[0])
    results = []
    output = Path(ready[0][0].search.experiment.output)
    found = trained_before(output, [plan.name for plan, _ in ready])
    for plan, data in ready:
        note = plan.note
        taken = taken_over(plan.search, data, found)
        note["taken_from"] = {number: str(run.path.relative_to(output)) for number, run in taken.items()}
        with search_table(plan.search) as shown:
            finished = run_search(plan.search, data_root, shown, address, data, {"table": note}, begun=taken)
        found |= trained(finished.folder)
        results.append(_read(plan, finished.folder))
        if finished.warning:
            click.echo(f"  warning: {finished.warning}", err=True)
    for sentence in absent:
        click.echo(f"not run: {sentence}", err=True)
    lines = list(dict.fromkeys(plan.line.name for plan in plans))
    name = plans[0].table.name + (f"/{lines[0]}" if len(lines) == 1 else "")
    return _closing(name, plans[0].table, results, output, absent)


def report_table(name: str, output: Path) -> CommandOutput:
    """A table from the last finished run of each of its lines under `output`. Raises UserError."""
    table, found = find_results(name, output)
    return _closing(name, table, found, output)


def find_results(name: str, output: Path) -> tuple[Table, list[Any]]:
    """A table, and the last finished runs of its lines under `output`. Raises UserError when there are none."""
    table, lines = find_lines(name, FAMILIES)
    latest = _latest(output)
    found: list[Any] = []
    for line in lines:
        full = f"{table.name}/{line.name}"
        if isinstance(line, StreamLine):
            ran = [heading for heading in line.methods if f"{full}/{heading}" in latest]
            found += [StreamResult.read(line, heading, latest[f"{full}/{heading}"]) for heading in ran]
        elif full in latest:
            found.append(LineResult.read(line, latest[full]))
    if not found:
        raise UserError(
            f"{name}: no finished run of it lies under {output}; run it first, or name the folder: --output"
        )
    return table, found


def _read(plan: Plan, folder: RunFolder) -> Result:
    if isinstance(plan, StreamPlan):
        return StreamResult.read(plan.line, plan.heading, folder)
    return LineResult.read(plan.line, folder)


def _latest(output: Path) -> dict[str, RunFolder]:
    """The last finished run of each line, by the line's name."""
    runs = []
    for file in output.glob("*/run.json"):
        # What is no run of a table, or was torn, is none of ours.
        with suppress(UserError, OSError):
            record = RunFolder(file.parent).record()
            if record.get("table") and record["status"] == "finished":
                runs.append((record["created"], record["table"]["line"], RunFolder(file.parent)))
    return {line: folder for _, line, folder in sorted(runs, key=lambda run: run[:2])}


def _closing(name: str, table: Table, results: list[Any], output: Path, absent: Sequence[str] = ()) -> CommandOutput:
    """The table, what was run for it, and where everything lies. absent: why some lines were not run."""
    folder = output / "tables" / name.replace("/", "-")
    write(table, results, folder)
    figures = (draw_results if isinstance(results[0], StreamResult) else draw_tables)(results, folder)
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
        **as_document(table, results),
        "rows": rows,
        "explained": results[0].explained,
        "remarks": remarks,
        "not_run": list(absent),
        "folder": folder,
        "figures": figures,
    }
    return CommandOutput(document, render)
