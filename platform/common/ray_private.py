"""Private names of Ray that this package uses, all tested with Ray 2.60.0, and the check of Ray's version.

Ray may rename or remove them in any release, so a version without them, or that was not tested, is refused. Importing
Ray takes a second, so each function imports it itself.
"""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hedgerow.platform.common.errors import UserError

TRIED = "2.60.0"
"""Version of Ray with which all names were tested."""

LEAST, UNTESTED = "2.55", "2.61"
"""Lowest version of Ray that has all names, and the first one with which they were not tested."""

NODE_LOSS = {"raylet_died", "node_removed"}
"""Types of Ray's messages about a lost node."""

REACHABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's environment variable that decides whether processes that Ray starts listen to other machines."""


def check_version() -> None:
    """Raise UserError if the installed version of Ray is not one that this package supports."""
    import ray

    def numbers(version: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", version)[:2])

    if not numbers(LEAST) <= numbers(ray.__version__) < numbers(UNTESTED):
        raise UserError(
            f"Ray {ray.__version__} is installed, but Hedgerow needs Ray >= {LEAST} and < {UNTESTED}; "
            f"install ray[tune]=={TRIED}"
        )


@contextmanager
def without_node_dumps() -> Iterator[None]:
    """A `ray.init` in this context prints no messages about lost nodes, with dozens of lines of their logs.

    Ray has no argument for this. Its thread that prints messages starts in `ray.init`.
    """
    from ray._private import worker as ray_worker

    listen: Any = ray_worker.listen_error_messages

    def without_dumps(worker: Any, threads_stopped: Any) -> None:
        listen(_WithoutNodeDumps(worker), threads_stopped)

    ray_worker.listen_error_messages = without_dumps
    try:
        yield
    finally:
        ray_worker.listen_error_messages = listen


class _WithoutNodeDumps:
    """Ray's global worker, or its subscriber of error messages, without messages about lost nodes."""

    def __init__(self, wrapped: Any):
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._wrapped, name)
        return _WithoutNodeDumps(value) if name == "gcs_error_subscriber" else value

    def poll(self) -> tuple[Any, Any]:
        key, message = self._wrapped.poll()
        return key, None if message and message.get("type") in NODE_LOSS else message


def job_settings() -> Any:
    """Settings of a job for `ray.init`: its processes find no modules in this process's working directory.

    Ray puts this folder, and that of the script, first on their import path, so that a module there takes the place of
    an installed one. It has no argument for this.
    """
    from ray.job_config import JobConfig

    class WithoutFolders(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            """Whether the job's own files are elsewhere."""
            return True

    return WithoutFolders()


def system_memory() -> int:
    """Memory of this machine or container in bytes."""
    from ray._common.utils import get_system_memory

    return get_system_memory()


def default_temp_folder() -> str:
    """Folder in which Ray creates its temporary folder."""
    from ray._common.utils import get_default_system_temp_dir

    return get_default_system_temp_dir()


def reread_authentication() -> None:
    """Make Ray in this process reread its authentication environment variables."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def set_listening(reachable: bool) -> Iterator[None]:
    """Set whether processes that Ray starts listen to other machines, or only on the loopback interface.

    Ray has no argument for this: the constant applies to this process, the variable to processes that it starts.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(REACHABLE)
    ray_constants.ENABLE_RAY_CLUSTER, os.environ[REACHABLE] = reachable, str(int(reachable))
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER, variable = before
        os.environ.pop(REACHABLE)
        if variable is not None:
            os.environ[REACHABLE] = variable


def host_and_port(address: str) -> str:
    """Address of a cluster as host:port, also for "auto". Raises ValueError."""
    from ray._private.services import canonicalize_bootstrap_address

    return canonicalize_bootstrap_address(address) or address


def actor_record(actor: Any) -> dict[str, Any]:
    """Record of an actor: State, Pid, Address."""
    import ray

    return ray._private.state.actors(actor._actor_id.hex())


def started_node() -> Any:
    """Ray node that this process started; None if this process only connected to an existing cluster."""
    import ray

    node = ray._private.worker.global_worker.node
    return node if node is not None and node.is_head() else None


def node_processes(node: Any) -> list[Any]:
    """Raylet and GCS processes of `started_node`."""
    return [node.all_processes[name][0].process for name in ("raylet", "gcs_server")]


def kill_node(node: Any) -> None:
    """Kill all processes of `started_node`."""
    node.kill_all_processes(check_alive=False, allow_graceful=False)


def node_folder(node: Any) -> Path:
    """Temporary folder of `started_node`."""
    return Path(node.get_temp_dir_path())


def quiet_job_client() -> None:
    """Silence loggers that report every upload and connection of Ray's job client."""
    for name in (
        "ray.dashboard.modules.dashboard_sdk",
        "ray.dashboard.modules.job.sdk",
        "ray._private.runtime_env.packaging",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)


def continue_trial(controller: Any, trial: Any) -> None:
    """Let a trial that a Ray Tune scheduler has held back train its next round.

    Tune has no public method for this, and schedulers receive a wrapper that warns about this private one.
    """
    getattr(controller, "_tune_controller", controller)._schedule_trial_train(trial)


def forget_decisions(controller: Any) -> None:
    """Drop the decisions that a restored Ray Tune controller has kept for trials that were being saved.

    Tune would execute such a decision after the next save of the trial, instead of the scheduler's new one, and a trial
    that waited would never continue.
    """
    for name in ("_cached_trial_decisions", "_queued_trial_decisions"):
        # A simulated controller keeps none.
        getattr(getattr(controller, "_tune_controller", controller), name, {}).clear()
