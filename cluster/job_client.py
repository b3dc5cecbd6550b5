"""Client of a cluster's job server. A failed request raises a UserError of one sentence."""

import asyncio
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
from hedgerow.platform.common.ray_private import quiet_job_client

DEFAULT = "http://127.0.0.1:8265"
"""Default address of a job server."""

VARIABLE = "RAY_API_SERVER_ADDRESS"
"""Ray's environment variable for the address. It takes precedence over the argument of Ray's client."""

PATIENCE = 60.0
"""Seconds to wait until the nodes of a newly started cluster accept jobs."""

ANSWERING = 20.0
"""Seconds to wait for a reply of a job server. Ray's client would wait forever."""


class JobClient:
    """Submits, lists, follows and stops the jobs of one cluster."""

    def __init__(self, address: str | None):
        """address: an http(s) URL. None: the address in the environment, else this machine. Raises UserError."""
        self.address = (address or os.environ.get(VARIABLE) or DEFAULT).rstrip("/")
        try:
            parts = urlsplit(self.address)
            well_formed = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
        except ValueError:
            well_formed = False
        if not well_formed:
            raise UserError(
                f"--address: {self.address!r} is not the address of a job server; write a URL such as {DEFAULT}, which "
                "`ray start --head` prints as the address of its dashboard"
            )
        os.environ[VARIABLE] = self.address
        quiet_job_client()
        with self._sentences():
            requests.get(f"{self.address}/api/version", timeout=ANSWERING).close()
            self.client = JobSubmissionClient(self.address)

    def submit(self, entrypoint: str, runtime_env: dict[str, Any], metadata: dict[str, str]) -> str:
        """Upload and start a job; returns its identifier. Waits while the cluster is starting."""
        deadline = time.monotonic() + PATIENCE
        with self._sentences():
            while True:
                try:
                    return self.client.submit_job(entrypoint=entrypoint, runtime_env=runtime_env, metadata=metadata)
                except RuntimeError as error:
                    if "No available agent" not in str(error) or time.monotonic() > deadline:
                        raise
                time.sleep(1)

    def jobs(self) -> list[JobDetails]:
        """Returns all submitted jobs, oldest first, without drivers that connected directly."""
        with self._sentences():
            jobs = [job for job in self.client.list_jobs() if job.submission_id]
        return sorted(jobs, key=lambda job: job.start_time or 0)

    def job(self, name: str) -> JobDetails:
        with self._sentences(name):
            return self.client.get_job_info(name)

    def logs(self, name: str) -> str:
        """Returns the output of a job so far."""
        with self._sentences(name):
            return self.client.get_job_logs(name)

    def follow(self, name: str, show: Callable[[str], None]) -> int:
        """Show the output of a job until it ends; returns its exit code."""

        async def tail() -> None:
            async for lines in self.client.tail_job_logs(name):
                show(lines)

        # The stream of an unknown job breaks like the connection to a server that does not answer.
        self.job(name)
        with self._sentences(name):
            asyncio.run(tail())
        # The log ends a moment before the job does, or earlier if the connection broke.
        while not (job := self.job(name)).status.is_terminal():
            time.sleep(0.5)
        return exit_code(job)

    def stop(self, name: str) -> bool:
        """Ask a job to stop, as Ctrl-C would; returns False if it had already ended."""
        with self._sentences(name):
            return self.client.stop_job(name)

    @contextmanager
    def _sentences(self, name: str = "") -> Iterator[None]:
        """Turn errors of the server and of the connection into a UserError."""
        try:
            yield
        except AuthenticationError:
            raise UserError(
                f"--address: the job server at {self.address} needs a token; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            ) from None
        except requests.exceptions.JSONDecodeError:
            raise UserError(f"--address: the server at {self.address} is not Ray's job server; check the URL") from None
        except (OSError, ClientError):
            raise UserError(
                f"--address: no job server answers at {self.address}; check the address and that the cluster "
                "was started with its dashboard (pip install 'ray[default]')"
            ) from None
        except (RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())
            if name and "does not exist" in text:
                raise UserError(f"{name}: there is no such job on {self.address}; `hedgerow jobs` lists them") from None
            raise UserError(f"the job server at {self.address} refused the request: {text[:300]}") from None


def exit_code(job: JobDetails) -> int:
    """Returns the exit code of the driver of a job that has ended, or 130 if the job was stopped."""
    if job.status == "SUCCEEDED":
        return 0
    return 130 if job.status == "STOPPED" else job.driver_exit_code or 1
