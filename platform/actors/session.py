"""Ray session of a run, and the resources of its nodes."""

import ctypes
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from joblib import cpu_count
from ray.exceptions import AuthenticationError

from hedgerow.platform.actors.actor_room import local_resources, mig_slices, named_cluster
from hedgerow.platform.actors.forked import python_command
from hedgerow.platform.actors.ray_folder import private_folder, private_token
from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.common.ray_private import (
    check_version,
    host_and_port,
    job_settings,
    set_listening,
    without_node_dumps,
)

STARTING = 30.0
"""Seconds that Ray gives its own processes to start. A start that takes longer is tried a second time."""

ANSWERING = 20.0
"""Seconds that a cluster has to answer."""

HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Start of an HTTP/2 connection, which gRPC uses: preface and empty SETTINGS frame (RFC 9113, sections 3.4 and 6.5)."""

HEADER, SETTINGS = 9, 4
"""Size in bytes of a frame's header, whose fourth byte is the type; type of the first frame that a server sends."""

QUICK = {
    "preload_python_modules": ["hedgerow.platform.actors.preload"],
    "max_direct_call_object_size": 1_000_000,
    "task_events_report_interval_ms": 0,
}
"""Ray's own settings, if this process starts Ray.

Processes that start with their modules loaded are ready sooner; sums of small models travel with the reply; no process
keeps a history of its calls, which takes kilobytes per call and is not used without a dashboard.
"""

_named: list[str] = []
"""Addresses of running clusters that the open sessions name."""


@contextmanager
def ray_session(address: str | None = None, prestart: bool = True) -> Iterator[None]:
    """Use the Ray that this process is connected to; otherwise connect to `address`; otherwise start Ray on this
    machine.

    prestart: whether a Ray that is started here begins with a process per CPU, for actors. Ray Tune's trials are not
    given these, since they have environment variables of their own.

    Stops what it has started. Raises UserError when no cluster answers at the address, or for a version of Ray that is
    not supported.
    """
    check_version()
    target = named_cluster(address)
    if target and "://" in target:
        kind = "the address of a job server" if target.startswith("http") else "an address for Ray Client"
        raise UserError(
            f"{'--address' if address else 'RAY_ADDRESS'}: {target} is {kind}; use `hedgerow submit` to send jobs "
            "to a cluster's job server, or the address auto on a node of the cluster"
        )
    with ExitStack() as opened:
        if target:
            _named.append(target)
            opened.callback(_named.remove, target)
        if not ray.is_initialized():
            opened.enter_context(_connected(target) if target else _started(prestart))
        yield


def on_cluster() -> bool:
    """Whether the open session is that of a running cluster that the user names, and not a Ray of this machine."""
    return bool(_named)


@contextmanager
def _started(prestart: bool) -> Iterator[None]:
    """A Ray on this machine, with all its resources. Raises UserError when Ray fails to start."""
    resources = {"num_cpus": cpu_count(), "num_gpus": mig_slices(), "_memory": int(local_resources()["memory"])}
    with ExitStack() as opened:
        begun = time.monotonic()
        try:
            try:
                opened.enter_context(local_ray(prestart=prestart, **resources))
            except Exception:
                if time.monotonic() - begun < STARTING:
                    raise
                # The machine was busy: the files that a start reads are in memory now.
                opened.enter_context(local_ray(prestart=prestart, **resources))
        except Exception as error:
            # Ray has no exception of its own for a failed start.
            raise UserError(
                f"Ray failed to start on this machine ({first_line(error)}): it may be overloaded, or its temporary "
                "folder (RAY_TMPDIR, or else /tmp) unusable; try again"
            ) from error
        yield


@contextmanager
def local_ray(reachable: bool = False, prestart: bool = True, **settings: Any) -> Iterator[None]:
    """Start a Ray on this machine, separate from any other Ray there, and stop it at the end.

    Its files are in a private folder, which is removed. reachable: from other machines and, on this one, from other
    drivers; otherwise its processes are forked, where they can be, see `forked`. prestart: see `ray_session`; of no
    effect where they are forked. settings: further arguments of `ray.init`.
    """
    with set_listening(reachable), private_folder() as folder, private_token(folder):
        try:
            # Where Ray is reachable, there may be processes on other machines.
            if not reachable and (python := python_command(folder / "p")):
                settings["runtime_env"], prestart = {"py_executable": python}, False
            system = {**QUICK, "prestart_worker_first_driver": prestart}
            _init("local", include_dashboard=False, _temp_dir=str(folder / "r"), _system_config=system, **settings)
            yield
        finally:
            _disconnect()
            _end_processes(folder)


def _end_processes(folder: Path) -> None:
    """End Ray's own processes in a folder, and with them its workers; `ray.shutdown` does not know those of a failed
    start.
    """
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any(str(folder) in argument for argument in process.cmdline()):
                process.kill()


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connection to a running cluster. Raises UserError when no cluster answers."""
    try:
        where = host_and_port(address)
        if trouble := trouble_at(where, ANSWERING):
            raise ConnectionError(trouble)
        _init(address)
    except (ConnectionError, ValueError, AuthenticationError) as error:
        raise UserError(
            f"no Ray cluster answers at {address!r} ({first_line(error)}); start one there, or leave the address out "
            "to use this machine"
        ) from None
    try:
        yield
    finally:
        _disconnect()


def trouble_at(address: str, seconds: float) -> str | None:
    """Reason why no gRPC server answers at HOST:PORT within `seconds`; None if one does.

    Ray's own client tries for minutes, and ignores signals.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
            if os.environ.get("RAY_USE_TLS", "0") != "0":
                return None
            connection.sendall(HELLO)
            header = connection.recv(HEADER, socket.MSG_WAITALL)
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None if len(header) == HEADER and header[3] == SETTINGS else "the server there is not Ray"


def _disconnect() -> None:
    """End the connection to Ray, and the Ray that it has started."""
    # If another thread collects a reference to a Ray object meanwhile, Ray ends the process with exit code 1.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        if was_enabled:
            gc.enable()


def _init(address: str, **settings: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before, handler = _get_handler(signal.SIGTERM), signal.getsignal(signal.SIGTERM)
    try:
        with without_node_dumps():
            ray.init(address, logging_level=logging.ERROR, log_to_driver=False, job_config=job_settings(), **settings)
    finally:
        # Ray's handlers end the process: that in Python at once, and the native one with a stack, after three seconds.
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)
        _set_handler(signal.SIGTERM, before)


# C API, since `signal.signal` works only in the main thread, and does not see handlers from outside Python.
_get_handler, _set_handler = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
_get_handler.argtypes, _get_handler.restype = [ctypes.c_int], ctypes.c_void_p
_set_handler.argtypes, _set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p


def node_resources() -> list[dict[str, float]]:
    """Resources of each node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]
