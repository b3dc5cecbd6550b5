"""A cluster's job server, through Ray's own client; what can go wrong with it becomes one sentence."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import requests
from aiohttp import ClientError
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobSubmissionClient

from hedgerow.platform.common.errors import UserError

DEFAULT = "http://127.0.0.1:8265"
"""Where a job server listens when it was not told otherwise."""

VARIABLE = "RAY_API_SERVER_ADDRESS"
"""Ray's own variable for the address, which goes before what its client is given."""

PATIENCE = 60.0
"""Seconds until the nodes of a cluster that was just started take jobs."""

ANSWERING = 20.0
"""Seconds that a job server is given to answer at all; Ray's client would wait for ever."""

CHATTY = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
"""Loggers that tell of every upload and connection."""


class JobServer:
    """The jobs of one cluster."""

    def __init__(self, address: str | None):
        """address: its http(s) address; None: that of the environment, else of this machine. Raises UserError."""
        self.address = (address or os.environ.get(VARIABLE) or DEFAULT).rstrip("/")
        try:
            parts = urlsplit(self.address)
            well_formed = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
        except ValueError:
            well_formed = False
        if not well_formed:
            raise UserError(
                f"--address: {self.address!r} is not the address of a job server; write one such as {DEFAULT}, which "
                "`ray start --head` prints as that of its dashboard"
            )
        os.environ[VARIABLE] = self.address
        for name in CHATTY:
            logging.getLogger(name).setLevel(logging.WARNING)
        with self._told():
            requests.get(f"{self.address}/api/version", timeout=ANSWERING).close()
            self.client = JobSubmissionClient(self.address)

    def submit(self, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]) -> str:
        """Upload and start a job; returns its identifier. Waits for a cluster that is only just starting."""
        deadline = time.monotonic() + PATIENCE
        with self._told():
            while True:
                try:
                    return self.client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env, metadata=metadata)
                except RuntimeError as error:
                    if "No available agent" not in str(error) or time.monotonic() > deadline:
                        raise
                time.sleep(1)

    def jobs(self) -> list[JobDetails]:
        """All jobs that were submitted, the oldest first; drivers that connected by themselves are none."""
        with self._told():
            found = [job for job in self.client.list_jobs() if job.submission_id]
        return sorted(found, key=lambda job: job.start_time or 0)

    def job(self, name: str) -> JobDetails:
        with self._told(name):
            return self.client.get_job_info(name)

    def logs(self, name: str) -> str:
        """What a job has printed so far."""
        with self._told(name):
            return self.client.get_job_logs(name)

    def follow(self, name: str, show: Callable[[str], None]) -> int:
        """Show what a job prints until it has ended; returns its exit code."""

        async def tail() -> None:
            async for lines in self.client.tail_job_logs(name):
                show(lines)

        with self._told(name):
            asyncio.run(tail())
        # The log ends a moment before the job does, or earlier where the connection broke.
        while not (job := self.job(name)).status.is_terminal():
            time.sleep(0.5)
        return exit_code(job)

    def stop(self, name: str) -> bool:
        """Ask a job to end, as Ctrl-C does; False: it had ended already."""
        with self._told(name):
            return self.client.stop_job(name)

    @contextmanager
    def _told(self, name: str = "") -> Iterator[None]:
        """Whatever the server or the way to it has against a request, as one sentence."""
        try:
            yield
        except AuthenticationError:
            raise UserError(
                f"--address: the job server at {self.address} wants a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            ) from None
        except requests.exceptions.JSONDecodeError:
            raise UserError(f"--address: what answers at {self.address} is not Ray's job server") from None
        except (OSError, ClientError):
            raise UserError(
                f"--address: no job server answers at {self.address}; check the address and that the cluster "
                "was started with its dashboard (pip install 'ray[default]')"
            ) from None
        except (RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            if name and "does not exist" in text:
                raise UserError(f"{name}: there is no such job on {self.address}; `hedgerow jobs` lists them") from None
            raise UserError(f"the job server at {self.address} refuses: {text[:300]}") from None


def exit_code(job: JobDetails) -> int:
    """Of a job that has ended: its driver's, or 130 for one that was stopped."""
    if job.status == "SUCCEEDED":
        return 0
    return 130 if job.status == "STOPPED" else job.driver_exit_code or 1
