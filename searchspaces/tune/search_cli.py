"""Commands about searches, published tables, and whatever is of an experiment or of a search."""

from pathlib import Path

import click

from hedgerow.platform.ui.cli_options import (
    address_option,
    answering,
    data_root_option,
    file_argument,
    files_argument,
    output_option,
    reading,
    run_argument,
    set_option,
    told_kindly,
)
from hedgerow.platform.ui.command_output import Answer


def complete_tables(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of published tables, and of their lines once a table is named."""
    from hedgerow.searchspaces.reproductions.published import all_tables

    names = [table.name for table in all_tables()]
    names += [f"{table.name}/{row.name}" for table in all_tables() for row in table.rows if incomplete.count("/") > 1]
    return [name for name in names if name.startswith(incomplete)]


@click.command()
@files_argument
@set_option
@data_root_option
@address_option
@answering
def search(files: tuple[Path, ...], overrides: tuple[str, ...], data_root: Path | None, address: str | None) -> Answer:
    """Search over hyperparameters, as the `search` section of each of FILES says.

    In place of a file, a line of a published table of searches, such as moml/s-mnist: every method under its own Hedge.

    Example: hedgerow search examples/digits_hedge.yaml --set search.gamma=0.5
    """
    reading(*files)
    from hedgerow.searchspaces.reproductions import REPRODUCTIONS
    from hedgerow.searchspaces.reproductions.table_command import plan_table, run_table
    from hedgerow.searchspaces.tune.search_command import search_all

    if len(files) == 1 and not files[0].exists() and files[0].parts[0] in REPRODUCTIONS:
        return run_table(plan_table(files[0].as_posix(), overrides, [], False, None), data_root, address)
    return search_all(files, overrides, data_root, address)


@click.command()
@click.argument("name", default="", shell_complete=complete_tables)
@set_option
@click.option("--methods", default="", metavar="A,B", help="Only these methods of the table (default: all).")
@click.option("--grid", is_flag=True, help="Each method with every configuration of its published grid.")
@click.option("--show", is_flag=True, help="Run nothing: print the experiment files of the lines.")
@click.option("--report", is_flag=True, help="Run nothing: print the table from the runs that there are.")
@output_option("Folder of the runs (default: runs).")
@data_root_option
@address_option
@answering
def table(
    name: str,
    overrides: tuple[str, ...],
    methods: str,
    grid: bool,
    show: bool,
    report: bool,
    output: Path | None,
    data_root: Path | None,
    address: str | None,
) -> Answer:
    """Run a published table, or one line of it, and print it beside the published numbers.

    NAME is FAMILY/TABLE or FAMILY/TABLE/LINE; without it, or with FAMILY alone, all lines are listed.

    Example: hedgerow table feddyn/T2.3/mnist-iid --set rounds=50 --data-root data
    """
    reading(name)
    from hedgerow.searchspaces.reproductions.table_command import (
        list_lines,
        plan_table,
        report_table,
        run_table,
        show_plans,
    )

    if "/" not in name:
        return list_lines(name)
    if report:
        return report_table(name, output or Path("runs"))
    chosen = [method.strip() for method in methods.split(",") if method.strip()]
    plans = plan_table(name, overrides, chosen, grid, output)
    return show_plans(plans) if show else run_table(plans, data_root, address)


@click.command()
@file_argument
@set_option
@answering
def show(file: Path, overrides: tuple[str, ...]) -> Answer:
    """Print the experiment or the search in FILE with every default filled in.

    Example: hedgerow show examples/digits_fedavg.yaml --set algorithm.lr=0.05
    """
    from hedgerow.searchspaces.tune.search_command import resolved

    return resolved(file, overrides)


@click.command()
@run_argument
@address_option
@answering
def resume(run: str, address: str | None) -> Answer:
    """Continue RUN, the folder of a run or a search, or the URI of its copy, from its last checkpoint.

    Example: hedgerow resume runs/digits-fedavg-20260101-120000
    """
    reading(run)
    from hedgerow.platform.tracking.run_folder import find_run

    folder = find_run(run)
    if folder.is_search:
        from hedgerow.searchspaces.tune.search_command import resume_one as resume_search

        return resume_search(str(folder.path), address)
    from hedgerow.platform.runs.run_command import resume_one

    return resume_one(str(folder.path), address)


@click.command()
@run_argument
@told_kindly
def push(run: str) -> None:
    """Send RUN's local record and final model to MLflow: what an unreachable server missed.

    What has arrived already is not sent again. Waits at most ten times `tracking.patience`.

    Example: hedgerow push runs/digits-fedavg-20260101-120000
    """
    reading(run)
    from hedgerow.searchspaces.tune.search_command import push_one

    push_one(run)


@click.command()
@output_option("File to write, such as hedgerow.schema.json (default: standard output).")
@click.option(
    "--algorithm", "own", multiple=True, metavar="PATH", help="The dotted path of your own, whose keys are checked too."
)
@told_kindly
def schema(output: Path | None, own: tuple[str, ...]) -> None:
    """Print the JSON schema of experiment files, by which editors complete and check them.

    A file refers to it by a first line: # yaml-language-server: $schema=hedgerow.schema.json

    Example: hedgerow schema -o hedgerow.schema.json
    """
    from hedgerow.searchspaces.spaces.json_schema import write_schema

    write_schema(output, own)


@click.command("list")
@click.argument("kind", type=click.Choice(["algorithms", "datasets", "partitions", "models", "spaces", "tables"]))
@answering
def list_(kind: str) -> Answer:
    """List what there is of KIND, with a description of each and its source.

    Example: hedgerow list algorithms --json
    """
    from hedgerow.searchspaces.listing import list_choices

    return list_choices(kind)
