"""Implementations of the commands `submit`, `jobs`, `logs` and `stop`."""

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from hedgerow.cluster.job_client import JobClient
from hedgerow.cluster.submission import check_command, check_size, read_runtime_env
from hedgerow.platform.common.signals import signal_of
from hedgerow.platform.common.table import Table
from hedgerow.platform.ui.command_output import CommandOutput


def submit_job(
    command: Sequence[str],
    group: click.Group,
    address: str | None,
    detach: bool,
    installed: bool,
    runtime_env: Path | None,
) -> int:
    """Check a command, submit it as a job and, unless `detach`, show its output; returns its exit code."""
    submission = check_command(command, group, ships=not installed)
    user_env = read_runtime_env(runtime_env)
    check_size(Path.cwd(), user_env)
    server = JobClient(address)
    with tempfile.TemporaryDirectory(prefix="hedgerow-submit-") as stage:
        environment = submission.runtime_env(user_env, Path(stage))
        name = server.submit(submission.entrypoint, environment, {"command": " ".join(command)})
    click.echo(f"job: {name}")
    return 0 if detach else _follow(server, name)


def list_jobs(address: str | None) -> CommandOutput:
    """List the jobs of a cluster."""
    rows = []
    for job in JobClient(address).jobs():
        started = datetime.fromtimestamp(job.start_time / 1000) if job.start_time else None
        rows.append(
            {
                "job": job.submission_id,
                "status": str(job.status).lower(),
                "started": started.isoformat(" ", "seconds") if started else "",
                "command": (job.metadata or {}).get("command", job.entrypoint),
            }
        )

    def render() -> None:
        if rows:
            Table(rows, "Jobs").print()
        else:
            click.echo("no jobs have been submitted to this cluster")

    return CommandOutput({"jobs": rows}, render)


def print_logs(name: str, address: str | None, follow: bool) -> int:
    """Print the output of a job. follow: until the job ends; returns its exit code."""
    server = JobClient(address)
    if follow:
        return _follow(server, name)
    click.echo(server.logs(name), nl=False)
    return 0


def stop_job(name: str, address: str | None) -> CommandOutput:
    """Ask a job to stop."""
    server = JobClient(address)
    stopping = server.stop(name)
    if stopping:
        text = f"{name} is being stopped; `hedgerow submit resume RUN` continues its run"
    else:
        text = f"{name} had already ended ({str(server.job(name).status).lower()})"
    return CommandOutput({"job": name, "stopping": stopping}, lambda: click.echo(text))


def _follow(server: JobClient, name: str) -> int:
    try:
        return server.follow(name, lambda lines: click.echo(lines, nl=False))
    except KeyboardInterrupt as error:
        click.echo(
            f"\n{name} keeps running; `hedgerow logs {name} --follow` shows its output, `hedgerow stop {name}` stops it"
        )
        return 128 + signal_of(error)
