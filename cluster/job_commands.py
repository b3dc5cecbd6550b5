"""What the commands about clusters do, apart from parsing their arguments."""

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from hedgerow.cluster.job_client import JobServer
from hedgerow.cluster.submission import check_command, read_runtime_env
from hedgerow.platform.runs.signals import signal_of
from hedgerow.platform.ui.command_output import Answer
from hedgerow.platform.ui.terminal import print_rows


def submit_job(
    command: Sequence[str],
    group: click.Group,
    address: str | None,
    detach: bool,
    installed: bool,
    runtime_env: Path | None,
) -> int:
    """Check a command, send it with what it needs, and show what it prints; returns its exit code."""
    submission = check_command(command, group, ships=not installed)
    given = read_runtime_env(runtime_env)
    server = JobServer(address)
    with tempfile.TemporaryDirectory(prefix="hedgerow-submit-") as stage:
        environment = submission.runtime_env(given, Path(stage))
        name = server.submit(submission.entrypoint, environment, {"command": " ".join(command)})
    click.echo(f"job: {name}")
    return 0 if detach else _follow(server, name)


def list_jobs(address: str | None) -> Answer:
    """A cluster's jobs."""
    rows = []
    for job in JobServer(address).jobs():
        started = datetime.fromtimestamp(job.start_time / 1000) if job.start_time else None
        rows.append(
            {
                "job": job.submission_id,
                "status": str(job.status).lower(),
                "started": started.isoformat(" ", "seconds") if started else "",
                "command": (job.metadata or {}).get("command", job.entrypoint),
            }
        )

    def tell() -> None:
        if rows:
            print_rows(rows, "Jobs")
        else:
            click.echo("no job was submitted to this cluster")

    return Answer({"jobs": rows}, tell)


def print_logs(name: str, address: str | None, follow: bool) -> int:
    """Print what a job has printed; `follow`: until it has ended, and return its exit code."""
    server = JobServer(address)
    if follow:
        return _follow(server, name)
    click.echo(server.logs(name), nl=False)
    return 0


def stop_job(name: str, address: str | None) -> None:
    """Ask a job to end."""
    server = JobServer(address)
    if server.stop(name):
        click.echo(f"{name} is being stopped; `hedgerow submit resume RUN` continues what it ran")
    else:
        click.echo(f"{name} had ended already ({str(server.job(name).status).lower()})")


def _follow(server: JobServer, name: str) -> int:
    try:
        return server.follow(name, lambda lines: click.echo(lines, nl=False))
    except KeyboardInterrupt as error:
        click.echo(f"\n{name} goes on; `hedgerow logs {name} --follow` shows it again, `hedgerow stop {name}` ends it")
        return 128 + signal_of(error)
