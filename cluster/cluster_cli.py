"""Commands about clusters."""

import sys
from pathlib import Path

import click

from hedgerow.platform.ui.cli_options import (
    FILE,
    address_option,
    answering,
    data_root_option,
    file_argument,
    set_option,
    told_kindly,
)
from hedgerow.platform.ui.command_output import Answer

server_option = click.option(
    "--address",
    default=None,
    metavar="URL",
    help="The cluster's job server (default: $RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265).",
)


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@server_option
@click.option("--detach", is_flag=True, help="Print the job's identifier and leave it alone.")
@click.option("--installed", is_flag=True, help="Use the Hedgerow that the cluster has, instead of sending this one.")
@click.option(
    "--runtime-env",
    type=FILE,
    default=None,
    help="Ray's runtime environment as a YAML file: env_vars, pip, excludes.",
)
@click.pass_context
@told_kindly
def submit(
    context: click.Context,
    command: tuple[str, ...],
    address: str | None,
    detach: bool,
    installed: bool,
    runtime_env: Path | None,
) -> None:
    """Run COMMAND (run, search, table, resume or plan, with its arguments) as a job on a cluster.

    The present folder travels along, but not runs/, data/ and what .gitignore names; paths of data and of `output` are
    the cluster's. What the job prints is shown, and its exit code is this command's.

    Example: hedgerow submit run exp.yaml --set output=/shared/runs --address http://head:8265
    """
    from hedgerow.cluster.job_commands import submit_job

    group = context.find_root().command
    assert isinstance(group, click.Group)
    sys.exit(submit_job(command, group, address, detach, installed, runtime_env))


@click.command()
@file_argument
@set_option
@data_root_option
@address_option
@click.option(
    "--nodes",
    default=None,
    metavar="NODES",
    help="Plan for such nodes: 4x(cpus=16,gpus=2,memory=64), joined by +, or a YAML file (memory in GB).",
)
@click.option("--measure", is_flag=True, help="Run an actor's share of some rounds here, to predict a round's seconds.")
@answering
def plan(
    file: Path,
    overrides: tuple[str, ...],
    data_root: Path | None,
    address: str | None,
    nodes: str | None,
    measure: bool,
) -> Answer:
    """Print what of FILE would be placed where, or what lacks; without --measure nothing is run.

    Example: hedgerow plan exp.yaml --nodes "4x(cpus=16,gpus=2,memory=64)"
    """
    from hedgerow.cluster.feasibility import plan_file

    return plan_file(file, overrides, data_root, address, nodes, measure)


@click.command()
@server_option
@answering
def jobs(address: str | None) -> Answer:
    """List the jobs of a cluster.

    Example: hedgerow jobs --address http://head:8265
    """
    from hedgerow.cluster.job_commands import list_jobs

    return list_jobs(address)


@click.command()
@click.argument("job")
@server_option
@click.option("--follow", is_flag=True, help="Go on until the job has ended; its exit code is this command's.")
@told_kindly
def logs(job: str, address: str | None, follow: bool) -> None:
    """Print what JOB has printed.

    Example: hedgerow logs raysubmit_1234567890123456 --follow
    """
    from hedgerow.cluster.job_commands import print_logs

    sys.exit(print_logs(job, address, follow))


@click.command()
@click.argument("job")
@server_option
@told_kindly
def stop(job: str, address: str | None) -> None:
    """Stop JOB as Ctrl-C does: what it runs can be resumed from its last checkpoint.

    Example: hedgerow stop raysubmit_1234567890123456
    """
    from hedgerow.cluster.job_commands import stop_job

    stop_job(job, address)
