"""Private names of Ray that this package uses, all tested with Ray 2.60.0, and the check of Ray's version.

Ray may rename or remove them in any release, so a version that was not tested is refused. Each function documents what
it does without its name: it uses a fallback, or raises a UserError that names the tested version. Importing Ray takes a
second, so each function imports it itself.
"""

import logging
import os
import re
import tempfile
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


def _unsupported(name: str, error: Exception) -> UserError:
    import ray

    return UserError(
        f"Ray {ray.__version__} does not have {name} ({error}), which Hedgerow needs and Ray {TRIED} has; install that "
        "version"
    )


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

    Ray has no argument for this. Its thread that prints messages starts in `ray.init`. Fallback: they are printed.
    """
    from ray._private import worker as ray_worker

    listen = getattr(ray_worker, "listen_error_messages", None)
    if listen is None:
        yield
        return

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
    an installed one. It has no argument for this. Fallback: they are there.
    """
    from ray.job_config import JobConfig

    class WithoutFolders(JobConfig):
        def _runtime_env_has_working_dir(self) -> bool:
            """Whether the job's own files are elsewhere."""
            return True

    return WithoutFolders()


def system_memory() -> int:
    """Memory of this machine or container in bytes. Fallback: memory of the machine."""
    try:
        from ray._common.utils import get_system_memory
    except ImportError:
        import psutil

        return psutil.virtual_memory().total
    return get_system_memory()


def default_temp_folder() -> str:
    """Folder in which Ray creates its temporary folder. Fallback: the same rule, for Linux."""
    try:
        from ray._common.utils import get_default_system_temp_dir
    except ImportError:
        return os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or tempfile.gettempdir()
    return get_default_system_temp_dir()


def reread_authentication() -> None:
    """Make Ray in this process reread its authentication environment variables. Raises UserError if it is missing."""
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()
    except (ImportError, AttributeError) as error:
        raise _unsupported("AuthenticationTokenLoader", error) from error


def listens_by_default() -> bool:
    """Whether Ray's processes listen to other machines by default (not on macOS and Windows). Fallback: True."""
    from ray._private import ray_constants

    return getattr(ray_constants, "ENABLE_RAY_CLUSTER", True)


def set_listening(reachable: bool) -> None:
    """Set whether processes that Ray starts listen to other machines, or only on the loopback interface.

    Ray has no argument for this: the constant applies to this process, the variable to processes that it starts. Raises
    UserError if the constant is missing, since processes would then listen to other machines.
    """
    from ray._private import ray_constants

    if not hasattr(ray_constants, "ENABLE_RAY_CLUSTER"):
        raise _unsupported("ENABLE_RAY_CLUSTER", AttributeError("ray._private.ray_constants"))
    ray_constants.ENABLE_RAY_CLUSTER = reachable
    os.environ[REACHABLE] = str(int(reachable))


def host_and_port(address: str) -> str:
    """Address of a cluster as host:port, also for "auto". Fallback: the address unchanged. Raises ValueError."""
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError:
        return address
    return canonicalize_bootstrap_address(address) or address


def actor_record(actor: Any) -> dict[str, Any]:
    """Record of an actor: State, Pid, Address. Fallback: empty."""
    import ray

    try:
        return ray._private.state.actors(actor._actor_id.hex())
    except AttributeError:
        return {}


def started_node() -> Any:
    """Ray node that this process started; None if this process only connected to an existing cluster.

    Fallback: None; this process then cannot kill a Ray that hangs.
    """
    import ray

    try:
        node = ray._private.worker.global_worker.node
        return node if node is not None and node.is_head() else None
    except AttributeError:
        return None


def node_processes(node: Any) -> list[Any]:
    """Raylet and GCS processes of `started_node`. Fallback: empty; they are then watched by port."""
    try:
        return [node.all_processes[name][0].process for name in ("raylet", "gcs_server")]
    except (AttributeError, KeyError, IndexError):
        return []


def kill_node(node: Any) -> None:
    """Kill all processes of `started_node`. Fallback: no effect; they end when this process ends."""
    if hasattr(node, "kill_all_processes"):
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def node_folder(node: Any) -> Path | None:
    """Temporary folder of `started_node`. Fallback: None."""
    return Path(node.get_temp_dir_path()) if hasattr(node, "get_temp_dir_path") else None


def quiet_job_client() -> None:
    """Silence loggers that report every upload and connection of Ray's job client. Fallback: they stay verbose."""
    for name in (
        "ray.dashboard.modules.dashboard_sdk",
        "ray.dashboard.modules.job.sdk",
        "ray._private.runtime_env.packaging",
    ):
        logging.getLogger(name).setLevel(logging.WARNING)


def continue_trial(controller: Any, trial: Any) -> None:
    """Let a trial that a Ray Tune scheduler has held back train its next round. Raises UserError if the name is
    missing.

    Tune has no public method for this, and schedulers receive a wrapper that warns about this private one.
    """
    try:
        getattr(controller, "_tune_controller", controller)._schedule_trial_train(trial)
    except AttributeError as error:
        raise _unsupported("_schedule_trial_train", error) from error


def forget_decisions(controller: Any) -> None:
    """Drop the decisions that a restored Ray Tune controller has kept for trials that were being saved.

    Tune would execute such a decision after the next save of the trial, instead of the scheduler's new one, and a trial
    that waited would never continue. Fallback: they stay.
    """
    for name in ("_cached_trial_decisions", "_queued_trial_decisions"):
        getattr(getattr(controller, "_tune_controller", controller), name, {}).clear()
