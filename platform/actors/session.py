"""Ray for a run: a session of it, and what its nodes have."""

import ctypes
import logging
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from threading import Event, Thread, Timer
from typing import Any

import ray
from joblib import cpu_count
from ray.exceptions import AuthenticationError

from hedgerow.platform.actors.cluster_probe import trouble_at
from hedgerow.platform.actors.ray_folder import private_folder, private_token
from hedgerow.platform.common.errors import UserError, first_line
from hedgerow.platform.common.ray_private import (
    draining_nodes,
    free_resources,
    host_and_port,
    listens_by_default,
    set_listening,
    system_memory,
)

ANSWERING, CONNECTING = 20.0, 60.0
"""Seconds that a cluster is given to answer at all, and to let this process in."""


QUICK = {
    "preload_python_modules": ["hedgerow.platform.actors.preload"],
    "max_direct_call_object_size": 1_000_000,
    "task_events_report_interval_ms": 0,
}
"""Ray's own settings, where it is started here.

Processes that start with what they need loaded are ready sooner; sums of small models travel with the reply; no process
keeps a history of its calls, which takes kilobytes each and which nobody reads without a dashboard.
"""

STORE_SHARE, STORE_MOST = 0.3, 200e9
"""What Ray takes of a node's memory for its object store, where it is not told otherwise, and at most (bytes)."""

_REACHABLE = listens_by_default()
"""Whether Ray's processes are to be reached from other machines; on macOS and Windows they are not, by default."""


_starting: list[Future[None]] = []
"""The session that is being started or is there, if this module has started it."""


@contextmanager
def ray_session(address: str | None = None) -> Iterator[None]:
    """Use the Ray that this process is connected to; else connect to `address`; else start one on this machine.

    What it starts it also stops. Raises UserError when nobody answers at the address.
    """
    with ray_starting(address) as ready:
        ready.result()
        yield


@contextmanager
def ray_starting(address: str | None = None) -> Iterator[Future[None]]:
    """As `ray_session`, in the background: to start Ray takes seconds. `result()` of what is yielded waits for it.

    Raises UserError at once for an address that is none of a cluster's.
    """
    wanted = _wanted(address)
    if wanted and "://" in wanted:
        kind = "that of a job server" if wanted.startswith("http") else "for Ray Client"
        raise UserError(
            f"{'--address' if address else 'RAY_ADDRESS'}: {wanted} is {kind}; from here `hedgerow submit` sends jobs "
            "to a cluster's job server, and on a node of the cluster itself the address is auto"
        )
    if _starting or ray.is_initialized():
        done: Future[None] = Future()
        done.set_result(None)
        yield _starting[0] if _starting else done
        return
    ready: Future[None] = Future()
    over = Event()

    def hold() -> None:
        # Linux ends what Ray has started here with the thread that has started it.
        try:
            with _connected(wanted) if wanted else _started():
                ready.set_result(None)
                over.wait()
        except BaseException as error:
            _fail(ready, error)

    # What is started is waited for, to be stopped. Ray's attempts to connect take their time, and nobody needs them.
    thread = Thread(target=hold, name="ray-session", daemon=wanted is not None)
    thread.start()
    limit = Timer(CONNECTING, _fail, (ready, _no_answer(wanted, f"no connection within {CONNECTING:g} s")))
    limit.daemon = True
    if wanted:
        limit.start()
    _starting.append(ready)
    try:
        yield ready
    finally:
        _starting.clear()
        limit.cancel()
        over.set()
        if wanted is None or (ready.done() and ready.exception() is None):
            thread.join()


def _fail(ready: Future[None], error: BaseException) -> None:
    with suppress(InvalidStateError):
        ready.set_exception(error)


def starts_here(address: str | None) -> bool:
    """Whether Ray would be started on this machine, and not one used that runs."""
    return _wanted(address) is None


def _wanted(address: str | None) -> str | None:
    """The cluster that the user names, by the option or by Ray's own variable; None: Ray is started here."""
    named = address or os.environ.get("RAY_ADDRESS")
    return None if named == "local" else named


@contextmanager
def _started() -> Iterator[None]:
    """A Ray on this machine, with all that it has. Raises UserError when it does not start."""
    with ExitStack() as opened:
        try:
            memory = int(local_resources()["memory"])
            opened.enter_context(local_ray(num_cpus=cpu_count(), _memory=memory))
        except Exception as error:
            # Ray has no error of its own for a start that fails.
            raise UserError(
                f"Ray did not start on this machine ({first_line(error)}); it may be overloaded, or its temporary "
                "folder not usable (RAY_TMPDIR, or else /tmp): try again, or set resources.executor to inline"
            ) from error
        yield


@contextmanager
def local_ray(reachable: bool = False, **settings: Any) -> Iterator[None]:
    """Start Ray on this machine, whatever other Ray runs there, and stop it at the end.

    Its files are in a private folder, which is removed. reachable: from other machines, and, on this one, from other
    drivers. settings: further arguments of `ray.init`.
    """
    _listen(reachable)
    with private_folder() as folder, private_token(folder):
        try:
            _init("local", include_dashboard=False, _temp_dir=str(folder / "r"), _system_config=dict(QUICK), **settings)
            yield
        finally:
            ray.shutdown()


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """A cluster that runs. Raises UserError when nobody answers there."""
    _listen(_REACHABLE)
    try:
        where = host_and_port(address)
        if trouble := trouble_at(where, ANSWERING):
            raise ConnectionError(trouble)
        _init(address)
    except (ConnectionError, ValueError, AuthenticationError) as error:
        raise _no_answer(address, first_line(error)) from None
    try:
        yield
    finally:
        ray.shutdown()


def _no_answer(address: str | None, why: str) -> UserError:
    return UserError(
        f"no Ray cluster answers at {address!r} ({why}); start one there, or leave the address out to use this machine"
    )


def _init(address: str, **settings: Any) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    before = _get_handler(signal.SIGTERM)
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **settings)
    finally:
        # Ray's own handler prints a native stack, and aborts the process three seconds later.
        _set_handler(signal.SIGTERM, before)


# As in C, since `signal.signal` is for the main thread alone, and does not see a handler that is not Python's.
_get_handler, _set_handler = ctypes.pythonapi.PyOS_getsig, ctypes.pythonapi.PyOS_setsig
_get_handler.argtypes, _get_handler.restype = [ctypes.c_int], ctypes.c_void_p
_set_handler.argtypes, _set_handler.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p


def _listen(reachable: bool) -> None:
    """Whether what Ray starts from here listens to other machines, or on the loopback interface alone.

    Ray has no argument for it: the constant is for this process, the variable for those that it starts.
    """
    set_listening(reachable)


def memory_of(total: float) -> dict[str, float]:
    """How a node's memory (bytes) is split: what its processes may reserve, and its object store."""
    store = min(STORE_SHARE * total, STORE_MOST)
    return {"memory": total - store, "object_store_memory": store}


def local_resources() -> dict[str, float]:
    """What client actors without a GPU find where Ray is started here."""
    return {"CPU": float(cpu_count()), **memory_of(system_memory())}


def node_resources() -> list[dict[str, float]]:
    """The resources of each node that is alive."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def lasting_nodes() -> dict[str, dict[str, float]]:
    """What is free on each node that is alive and has no notice that it is to go, by its id."""
    leaving, free = draining_nodes(), free_resources()
    lasting = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in leaving]
    return {node: dict(free.get(node, {})) for node in lasting}
