"""The command line: every command with its options and help. The `*_command` modules do the work.

They import torch, Ray and MLflow, which takes seconds, so each command imports its own module when it is called.
"""

import sys
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from hedgerow.algorithms.core.own_code import command_line
from hedgerow.platform.common.quiet import quiet_libraries
from hedgerow.platform.ui.cli_options import (
    PATH,
    address_option,
    complete_algorithms,
    complete_runs,
    data_root_option,
    enter_working_folder,
    file_argument,
    files_argument,
    import_module_of,
    import_option,
    job_option,
    output_option,
    run_argument,
    runs_argument,
    server_option,
    set_option,
    split_names,
    split_seeds,
    starting,
)
from hedgerow.platform.ui.command_output import CommandOutput, handle_user_errors, prints_output

HELP_SECTIONS = {
    "Run": ("run", "search", "replay", "table", "resume"),
    "Write": ("new", "schema", "completion"),
    "Inspect": ("demo", "watch", "report", "compare", "export", "show", "list", "partition", "ui", "push"),
    "Clusters": ("plan", "submit", "jobs", "logs", "stop"),
}
"""Commands under each heading, in the order of the help."""


class SectionedGroup(click.Group):
    """A group of commands whose help lists them under headings."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        for heading, names in HELP_SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<10}", self.commands[name].get_short_help_str(200)) for name in names])


EXIT_CODES = """\b
Exit codes:
  0    success
  1    unexpected error: the traceback shows where
  2    a mistake in a file or on the command line, one sentence each, before any work starts; or the
       disk is full, or Ray failed to start or died: `hedgerow resume` continues the run
  129  interrupted since the terminal was closed (SIGHUP): `hedgerow resume` continues the run
  130  interrupted by Ctrl-C: `hedgerow resume` continues the run
  143  interrupted by SIGTERM: `hedgerow resume` continues the run
`submit` and `logs --follow` exit with the code of the job."""

# As wide as the terminal, up to 120 columns: examples stay on one line, so that they can be copied.
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


@click.group(cls=SectionedGroup, context_settings=SETTINGS, epilog=EXIT_CODES)
@click.version_option(package_name="hedgerow")
def main() -> None:
    """Federated-learning experiments on Ray: one YAML file, one command.

    Example: hedgerow run examples/digits_fedavg.yaml
    """
    quiet_libraries()
    click.get_current_context().with_resource(command_line())


# Run


@main.command()
@files_argument
@set_option
@import_option
@click.option(
    "--seeds",
    default=None,
    metavar="A,B,...",
    callback=split_seeds,
    help="Run each experiment once with each of these seeds, in place of the seeds in FILES.",
)
@data_root_option
@address_option
@job_option
@prints_output
def run(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    seeds: list[int] | None,
    data_root: Path | None,
    address: str | None,
    job: str | None,
) -> CommandOutput:
    """Run the experiments in FILES, one after the other, and compare them.

    With several seeds, results are means with confidence intervals, and experiments are compared seed by seed.

    Example: hedgerow run examples/digits_fedavg.yaml --set rounds=20 --seeds 0,1,2
    """
    with starting(*files):
        from hedgerow.platform.actors.forked import prepare
        from hedgerow.platform.runs.run_command import run_experiments

    prepare()
    return run_experiments(files, overrides, seeds, data_root, address, job)


@main.command()
@files_argument
@set_option
@import_option
@data_root_option
@address_option
@job_option
@prints_output
def search(
    files: tuple[Path, ...], overrides: tuple[str, ...], data_root: Path | None, address: str | None, job: str | None
) -> CommandOutput:
    """Search over hyperparameters, as defined by the `search` section of each of FILES.

    Example: hedgerow search examples/digits_hedge.yaml --set search.gamma=0.5
    """
    with starting(*files):
        from hedgerow.platform.actors.forked import prepare

        prepare()
        from hedgerow.searchspaces.tune.search_command import search_all

    return search_all(files, overrides, data_root, address, job)


@main.command()
@click.argument("recording", shell_complete=complete_runs)
@click.option(
    "--kind",
    required=True,
    metavar="KIND",
    callback=import_module_of,
    help="Kind of search, as under `search.kind`; not pbt.",
)
@set_option
@import_option
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    default=None,
    metavar="N",
    help="Maximum number of client rounds: one client in one round of one trial (default: unlimited).",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Trials that train at once (default: all).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="Seed of the order of the configurations and of all draws (default: the recorded order and seed).",
)
@prints_output
def replay(
    recording: str,
    kind: str,
    overrides: tuple[str, ...],
    budget: float | None,
    slots: int | None,
    seed: int | None,
) -> CommandOutput:
    """Show which configuration another kind of search would have chosen in RECORDING, and at which cost.

    RECORDING is the folder of a search with `record: all`, or its recording.json. Nothing is trained: the tuner reads
    the recorded curves. --set changes keys of `search`, such as search.grace.

    Example: hedgerow replay runs/digits-hedge-20260101-120000 --kind asha --set search.grace=5 --budget 2000
    """
    with starting(recording):
        from hedgerow.searchspaces.extra.replay import replay_recording

    return replay_recording(recording, kind, overrides, budget, slots, seed)


def complete_tables(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of published tables, and of their rows once a table is named."""
    from hedgerow.searchspaces.extra.table_file import all_tables

    names = [table.name for table in all_tables()]
    names += [f"{table.name}/{row.name}" for table in all_tables() for row in table.rows if incomplete.count("/") > 1]
    return [name for name in names if name.startswith(incomplete)]


@main.command()
@click.argument("name", default="", shell_complete=complete_tables)
@set_option
@import_option
@click.option(
    "--methods",
    default="",
    metavar="A,B",
    callback=split_names,
    help="Run only these methods of the table (default: all).",
)
@click.option("--grid", is_flag=True, help="Run each method with every configuration of its published grid.")
@click.option("--show", is_flag=True, help="Print the experiment files of the rows without running them.")
@click.option("--report", is_flag=True, help="Print the table from finished runs without running anything.")
@output_option("Folder of the runs (default: runs).")
@data_root_option
@address_option
@job_option
@prints_output
def table(
    name: str,
    overrides: tuple[str, ...],
    methods: list[str],
    grid: bool,
    show: bool,
    report: bool,
    output: Path | None,
    data_root: Path | None,
    address: str | None,
    job: str | None,
) -> CommandOutput:
    """Run a published table, or one row of it, and print it next to the published numbers.

    NAME is FAMILY/TABLE or FAMILY/TABLE/ROW. Without NAME, or with FAMILY alone, all rows are listed, with the verdict
    on each table. `hedgerow report` draws the figures.

    Example: hedgerow table feddyn/T2.3/mnist-iid --set rounds=50 --data-root data
    """
    with starting(name):
        from hedgerow.platform.actors.forked import prepare

        if "/" in name and not (report or show):
            prepare()
        from hedgerow.searchspaces.extra.table_command import (
            list_lines,
            report_table,
            run_table,
            show_searches,
            table_searches,
        )

    if "/" not in name:
        return list_lines(name)
    if report:
        return report_table(name, output or Path("runs"))
    searches = table_searches(name, overrides, methods, grid, output)
    if show:
        return show_searches(searches)
    return run_table(searches, data_root, address, job)


@main.command()
@run_argument
@click.option("--changed", is_flag=True, help="Continue with changed settings in experiment.yaml, and record them.")
@import_option
@address_option
@prints_output
def resume(run: str, changed: bool, address: str | None) -> CommandOutput:
    """Continue RUN from its last checkpoint.

    RUN is the folder of a run or of a search, or the URI of its copy. If RUN has one of several seeds, the others are
    continued too, and those that have not started are run.

    Example: hedgerow resume runs/digits-fedavg-20260101-120000
    """
    with starting(run):
        from hedgerow.platform.actors.forked import prepare
        from hedgerow.searchspaces.resume_command import resume_any

    prepare()
    return resume_any(run, address, changed)


# Write


@main.group()
def new() -> None:
    """Write an experiment file with its keys explained, or the code and the test of an algorithm.

    Existing files are never overwritten.

    Example: hedgerow new experiment mine
    """


@new.command()
@click.argument("name", callback=enter_working_folder)
@click.option(
    "--algorithm",
    default="fedavg",
    show_default=True,
    metavar="NAME",
    callback=import_module_of,
    shell_complete=complete_algorithms,
    help="Algorithm of the experiment, or the dotted path of your own. It decides which other sections are needed.",
)
@click.option("--all", "every", is_flag=True, help="Write every key, with its default and its description.")
@set_option
@import_option
@data_root_option
@prints_output
def experiment(
    name: str, algorithm: str, every: bool, overrides: tuple[str, ...], data_root: Path | None
) -> CommandOutput:
    """Write NAME.yaml, an experiment that runs as it is.

    The file has the keys that most experiments set, with their descriptions.

    Example: hedgerow new experiment mine --algorithm feddyn --set task.model.hidden=[100]
    """
    from hedgerow.platform.ui.starter_files import new_experiment

    return new_experiment(name, algorithm, overrides, data_root, every)


@new.command()
@click.argument("name")
@prints_output
def algorithm(name: str) -> CommandOutput:
    """Write NAME.py, a working algorithm to start from, and test_NAME.py, its test.

    Both are written to the working directory. The test passes.

    Example: hedgerow new algorithm my_average
    """
    from hedgerow.platform.ui.starter_files import new_algorithm

    return new_algorithm(name)


@main.command()
@output_option("File to write, such as hedgerow.schema.json (default: standard output).")
@click.option(
    "--algorithm",
    "own",
    multiple=True,
    metavar="PATH",
    callback=import_module_of,
    help="Dotted path of your own algorithm, to include its keys.",
)
@handle_user_errors
def schema(output: Path | None, own: tuple[str, ...]) -> None:
    """Print the JSON schema of experiment files, which editors use to complete and check them.

    The first line of a file refers to it: # yaml-language-server: $schema=hedgerow.schema.json

    Example: hedgerow schema -o hedgerow.schema.json
    """
    from hedgerow.searchspaces.spaces.json_schema import write_schema

    write_schema(output, own)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, runs, tables and algorithms in SHELL.

    Save it as ~/.local/share/bash-completion/completions/hedgerow (bash), as ~/.config/fish/completions/hedgerow.fish
    (fish), or as _hedgerow in a folder of $fpath (zsh).

    Example: hedgerow completion bash
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "hedgerow", "_HEDGEROW_COMPLETE").source())


# Inspect


@main.command()
@output_option("HTML file to write (default: hedgerow-demo.html).")
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@prints_output
def demo(output: Path | None, browse: bool) -> CommandOutput:
    """Write the report of a finished search on the digits, without training.

    The records of a real search are part of the package.

    Example: hedgerow demo --open
    """
    from hedgerow.reports.demo_command import show_demo

    return show_demo(output, browse)


@main.command()
@click.argument("name", shell_complete=complete_runs)
@click.option("--page", is_flag=True, help="Write the report every 15 seconds instead; the page reloads itself.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    show_default="2, with --page 15",
    metavar="SECONDS",
    help="Time between two looks at the files.",
)
@server_option
@handle_user_errors
def watch(name: str, page: bool, every: float | None, address: str | None) -> None:
    """Follow a run, a search or a job until it ends, or until Ctrl-C.

    NAME is the folder of a run or of a search, or the identifier of a job on a cluster. The command only reads files
    and the output of jobs: it can be started and stopped at any time.

    Example: hedgerow watch runs/digits-fedavg-20260101-120000
    """
    if name.startswith("raysubmit_"):
        from hedgerow.cluster.job_commands import print_logs

        sys.exit(print_logs(name, address, True))
    with starting(name):
        from hedgerow.reports.watch_command import watch as follow

    sys.exit(follow(name, page, every or (15 if page else 2)))


@main.command()
@runs_argument
@output_option("HTML file to write (default: report.html; for a single folder, in that folder).")
@click.option("--mlflow/--no-mlflow", default=True, help="Log the page to the MLflow store of the runs (default: yes).")
@prints_output
def report(runs: tuple[str, ...], output: Path | None, mlflow: bool) -> CommandOutput:
    """Write an HTML page about RUNS: folders of runs, searches or tables.

    Runs of one experiment with different seeds are drawn as one line, with a band. The page is self-contained.

    Example: hedgerow report runs/digits-fedavg-* runs/digits-feddyn-* -o report.html
    """
    from hedgerow.reports.report_command import write_report

    return write_report(runs, output, mlflow)


@main.command()
@runs_argument
@click.option("--metric", default=None, metavar="NAME", help="Metric to compare (default: the metric of the targets).")
@click.option(
    "--target", "targets", type=float, multiple=True, help="Compare the cost of reaching this value; may be repeated."
)
@prints_output
def compare(runs: tuple[str, ...], metric: str | None, targets: tuple[float, ...]) -> CommandOutput:
    """Compare the experiments of RUNS, paired over seeds: mean ± deviation, and which differences matter.

    Runs that differ only in their seed belong to one experiment. A sweep is compared by its trials, a Hedge search by
    the results of Hedge itself.

    Example: hedgerow compare runs/digits-fedavg-* runs/digits-feddyn-* --target 0.9
    """
    from hedgerow.reports.report_command import comparison

    return comparison(runs, metric, targets)


@main.command()
@run_argument
@import_option
@click.argument("file", type=PATH)
@click.option("--round", "number", type=click.IntRange(min=1), default=None, metavar="N", help="Export this round.")
@click.option("--best", is_flag=True, help="Export the best round by `checkpoints.best`.")
@click.option("--client", type=click.IntRange(min=0), default=None, metavar="N", help="Export this client's own model.")
@prints_output
def export(run: str, file: Path, number: int | None, best: bool, client: int | None) -> CommandOutput:
    """Write the model of RUN to FILE: .pt, a state dict; .safetensors; or .onnx, with the normalisation of samples.

    By default, the model of the last checkpoint. ONNX needs the extra `onnx`.

    Example: hedgerow export runs/digits-fedavg-20260101-120000 model.safetensors
    """
    if best and number is not None:
        raise click.UsageError("give either --round or --best")
    with starting(run):
        from hedgerow.platform.runs.run_command import export as export_run

    return export_run(run, file, "best" if best else number, client)


@main.command()
@file_argument
@set_option
@import_option
@prints_output
def show(file: Path, overrides: tuple[str, ...]) -> CommandOutput:
    """Print the experiment or the search in FILE with every default filled in, and the origin of every other value.

    Example: hedgerow show examples/digits_fedavg.yaml --set algorithm.lr=0.05
    """
    from hedgerow.searchspaces.show_command import show_file

    return show_file(file, overrides)


@main.command("list")
@click.argument("kind", type=click.Choice(["algorithms", "datasets", "partitions", "models", "spaces"]))
@prints_output
def list_(kind: str) -> CommandOutput:
    """List the choices of a KIND that an experiment can name, with descriptions and sources.

    Example: hedgerow list algorithms --json
    """
    from hedgerow.searchspaces.list_command import list_choices

    return list_choices(kind)


@main.command()
@file_argument
@set_option
@import_option
@data_root_option
@output_option("Plot to write, without extension (default: NAME-partition in the experiment's output folder).")
@prints_output
def partition(file: Path, overrides: tuple[str, ...], data_root: Path | None, output: Path | None) -> CommandOutput:
    """Print and plot the partition of FILE: the number of samples per client and class.

    Example: hedgerow partition examples/digits_fedavg.yaml --set task.partition.alpha=0.1 -o picture
    """
    from hedgerow.platform.runs.run_command import show_partition

    return show_partition(file, overrides, data_root, output)


@main.command()
@click.argument("run", required=False, shell_complete=complete_runs)
@click.option("--uri", default=None, help="MLflow store, instead of a run's: sqlite:///FILE, or a tracking server.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=None,
    help="Port on this machine's loopback interface (default: the first free port from 5000 on).",
)
@click.option("--open", "browse", is_flag=True, help="Open the page in a browser.")
@handle_user_errors
def ui(run: str | None, uri: str | None, port: int | None, browse: bool) -> None:
    """Serve MLflow's web page for the store of RUN, until Ctrl-C.

    RUN is the folder of a run or of a search. Without RUN, the page shows the store of ./runs.

    Example: hedgerow ui --open
    """
    from hedgerow.platform.ui.mlflow_server import open_page

    open_page(run, uri, port, browse)


@main.command()
@run_argument
@import_option
@prints_output
def push(run: str) -> CommandOutput:
    """Upload the records and the final model of RUN that an unreachable MLflow server missed.

    Records that have arrived are not sent again. Waits at most ten times `tracking.patience`.

    Example: hedgerow push runs/digits-fedavg-20260101-120000
    """
    with starting(run):
        from hedgerow.searchspaces.tune.search_command import push_run_or_search

    return push_run_or_search(run)


# Clusters


@main.command()
@file_argument
@set_option
@import_option
@data_root_option
@address_option
@click.option(
    "--nodes",
    default=None,
    metavar="NODES",
    help="Nodes to plan for: 4x(cpus=16,gpus=2,memory=64), joined by +, or a YAML file (memory in GB).",
)
@prints_output
def plan(
    file: Path,
    overrides: tuple[str, ...],
    data_root: Path | None,
    address: str | None,
    nodes: str | None,
) -> CommandOutput:
    """Show how the actors of FILE would be placed on a cluster, and which resources are missing.

    Nothing is run.

    Example: hedgerow plan exp.yaml --nodes "4x(cpus=16,gpus=2,memory=64)"
    """
    from hedgerow.cluster.plan_command import plan_file

    return plan_file(file, overrides, data_root, address, nodes)


@main.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@server_option
@click.option("--detach", is_flag=True, help="Print the job's identifier, and do not wait for the job to finish.")
@click.option("--installed", is_flag=True, help="Use the cluster's installed Hedgerow, instead of uploading this one.")
@click.option(
    "--runtime-env", type=PATH, default=None, help="Ray's runtime environment as a YAML file: env_vars, pip, excludes."
)
@handle_user_errors
def submit(
    command: tuple[str, ...], address: str | None, detach: bool, installed: bool, runtime_env: Path | None
) -> None:
    """Run COMMAND (run, search, table, resume or plan, with its arguments) as a job on a cluster.

    The working directory is uploaded, except runs/, data/ and files that .gitignore excludes. Paths of data and of
    `output` are paths on the cluster. The command shows the output of the job and exits with its exit code.

    Example: hedgerow submit run exp.yaml --set output=/shared/runs --address http://head:8265
    """
    from hedgerow.cluster.job_commands import submit_job

    sys.exit(submit_job(command, main, address, detach, installed, runtime_env))


@main.command()
@server_option
@prints_output
def jobs(address: str | None) -> CommandOutput:
    """List the jobs of a cluster.

    Example: hedgerow jobs --address http://head:8265
    """
    from hedgerow.cluster.job_commands import list_jobs

    return list_jobs(address)


@main.command()
@click.argument("job")
@server_option
@click.option("--follow", is_flag=True, help="Print new output until the job ends, and exit with its code.")
@handle_user_errors
def logs(job: str, address: str | None, follow: bool) -> None:
    """Print the output of JOB.

    Example: hedgerow logs raysubmit_1234567890123456 --follow
    """
    from hedgerow.cluster.job_commands import print_logs

    sys.exit(print_logs(job, address, follow))


@main.command()
@click.argument("job")
@server_option
@prints_output
def stop(job: str, address: str | None) -> CommandOutput:
    """Stop JOB as Ctrl-C would: its run can be resumed from the last checkpoint.

    Example: hedgerow stop raysubmit_1234567890123456
    """
    from hedgerow.cluster.job_commands import stop_job

    return stop_job(job, address)
