"""Transport to worker processes on this machine, without Ray.

They are forked: they start at once, and share this process's memory.

With GPUs, a gradient that torch computes in a process breaks gradients in processes that are forked from it later.
Workers are therefore forked from a process of its own, which is forked early and computes nothing. The processes of a
Ray that this process starts are forked from it too: a torch that each of them imports takes 0.3 GB and two seconds.
"""

import atexit
import ctypes
import gc
import os
import shlex
import signal
import socket
import stat
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hedgerow.algorithms.core.pytree import Tree
from hedgerow.platform.actors.forked_program import run_program
from hedgerow.platform.actors.small_messages import message_of, pack, receive, send, unpack
from hedgerow.platform.actors.surroundings import Surroundings
from hedgerow.platform.common.errors import ProcessesLost
from hedgerow.platform.common.own_code_errors import own_errors
from hedgerow.platform.common.signals import TERMINATIONS
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.mapped_arrays import LARGE, concatenated, shared_file
from hedgerow.platform.runtime.aggregation import sum_trees
from hedgerow.platform.runtime.coordinator import worker_arguments
from hedgerow.platform.runtime.process import init_process
from hedgerow.platform.runtime.state_store import MappedMemory
from hedgerow.platform.runtime.transport import Answer, arrays_of
from hedgerow.platform.runtime.worker import Worker

BUFFER = 2**22
"""Bytes of a socket's buffer: larger messages need more switches between the two processes."""

PROBE_SECONDS = 5
"""Maximum seconds of the probe whether forked processes can compute."""

REPORTED_SECONDS = 2.0
"""Time within which it is known how a process has ended."""

_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG of prctl: the signal that Linux sends a process when its parent ends."""

WORKER, PROGRAMS = b"w", b"p"
"""Messages to the process that forks: with a new worker's connection, and with a socket of requests for programs."""

_forks: socket.socket | None = None
"""Connection to the process that forks workers."""

_ended: dict[int, int] = {}
"""Exit status of processes that have ended, by their numbers, as far as they are not yet asked for."""

_without_ray = True
"""Whether the process that forks has not imported Ray, which keeps the settings of the process that imports it."""

_works: bool | None = None
"""Whether its children can compute gradients; None: it has not yet answered."""


def prepare() -> None:
    """Fork the process that forks workers, once. Call it after the imports and before the first gradient.

    Does nothing where processes cannot be forked safely: outside Linux, and in a process with several threads.
    """
    global _forks, _works, _without_ray
    if _forks is not None or sys.platform != "linux" or threading.active_count() > 1:
        return
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _works, _without_ray = None, "ray" not in sys.modules
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    with warnings.catch_warnings():
        # From Python 3.12 on, about threads of libraries. The probe shows whether they matter.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        _leave_pipes(there.fileno())
        _run_child(lambda: _fork_workers(there))
    there.close()
    _forks = here
    atexit.register(_end, here, process)


def _leave_pipes(kept: int) -> None:
    """Close this process's ends of pipes and sockets, except one, so that the other ends see when the parent closes its
    own.

    Their numbers stay taken, since an object that has one would write into what is opened next. Files stay open: a
    user's code may log to them.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for opened in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
        # The folder's own descriptor is closed already.
        with suppress(OSError):
            mode = os.fstat(opened).st_mode
            if opened > 2 and opened != kept and (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
                os.dup2(nowhere, opened)


def _end(forks: socket.socket, process: int) -> None:
    forks.close()
    # The workers end with it.
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def is_prepared() -> bool:
    """Whether this process can start workers."""
    global _works
    if _works is None:
        _works = _forks is not None and _forks.recv(1) == b"1"
    return _works


def python_command(path: Path) -> str | None:
    """Command that runs Python programs in forked processes, until this process ends.

    path: of the socket that it asks, which is created. Returns None where processes cannot be forked, or Ray was
    imported before `prepare`.
    """
    if not is_prepared() or not _without_ray:
        return None
    assert _forks is not None
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        try:
            socket.send_fds(_forks, [PROGRAMS], [listener.fileno()])
        except OSError:
            return None
    return shlex.join([sys.executable, "-IS", str(Path(__file__).with_name("fork_request.py")), str(path)])


def _run_child(work: Callable[[], None]) -> None:
    """Do the work of a forked process, and end it. Signals from a terminal or a scheduler are for its parent."""
    code = 1
    try:
        for number in (signal.SIGINT, *TERMINATIONS):
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGKILL)
        # Standard output belongs to the command: it may be a JSON document.
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _fork_workers(requests: socket.socket) -> None:
    """Say whether children can compute gradients, then fork a worker for each connection that arrives, and a program
    for each request at a socket that has arrived, until the parent closes its end.
    """
    # It may be off during the imports. It leaves the objects that are there alone, so that they stay shared.
    gc.freeze()
    gc.enable()
    if (probe := os.fork()) == 0:
        # Silent: it fails, or waits forever, if the process that calls `prepare` has computed before.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(PROBE_SECONDS)
        _run_child(_compute)
    failed = os.waitpid(probe, 0)[1]

    def report(*_: Any) -> None:
        """Report how workers have ended."""
        # Without children there is an error.
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                # Without waiting: the other end reads it when it forks the next worker, or misses one.
                with suppress(OSError):
                    requests.send("{} {}".format(*ended).encode(), socket.MSG_DONTWAIT)

    signal.signal(signal.SIGCHLD, report)
    # Of the last Ray alone: one ends before the next starts.
    listener: socket.socket | None = None
    with suppress(ConnectionError):
        requests.send(b"0" if failed else b"1")
        while True:
            ready = wait([requests, listener] if listener else [requests])
            if requests in ready:
                message, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
                if not message:
                    return
                connection = socket.socket(fileno=descriptors[0])
                if message == PROGRAMS:
                    if listener:
                        listener.close()
                    listener = connection
                    continue
            else:
                assert listener is not None
                connection = listener.accept()[0]
            # Without memory for another process, the request is answered by the end of the connection.
            with suppress(OSError):
                if os.fork() == 0:
                    requests.close()
                    if listener:
                        listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    if requests not in ready:
                        run_program(connection)
                    _run_child(lambda connection=connection: _serve(connection))  # type: ignore[misc]
            connection.close()


def _compute() -> None:
    """A gradient and an operation of two threads, which a forked process may not be able to compute."""
    torch.set_num_threads(2)
    torch.ones(10**6, requires_grad=True).sum().backward()


def _serve(connection: socket.socket) -> None:
    """Answer calls of a worker's methods until the connection is closed. The first call is `load_run`."""
    worker: Any = None
    send(connection, os.getpid())

    def answer_call() -> bool:
        """Answer the next call; returns whether there was one. Its arrays end with it."""
        nonlocal worker
        if (message := receive(connection)) is None:
            return False
        method, arguments, is_shared = message
        broadcasts = receive(connection) if is_shared else None
        if is_shared and broadcasts is None:
            return False
        shared = {"broadcasts": broadcasts} if is_shared else {}
        reply: tuple[Any, Exception | None]
        try:
            with own_errors():
                if method == "load_run":
                    worker, answer = _build_worker(*arguments), None
                else:
                    answer = getattr(worker, method)(*arguments, **shared)
            reply = answer, None
        except Exception as error:
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            # A traceback would keep the arrays of this call.
            reply = None, _portable(error).with_traceback(None)
        try:
            send(connection, reply)
        except OSError:
            return False
        return True

    while answer_call():
        pass


def _portable(error: Exception) -> Exception:
    """The error, or its text if it cannot be sent to another process."""
    try:
        unpack(pack(error))
    except Exception:
        return RuntimeError("".join(traceback.format_exception(error)))
    return error


def _build_worker(
    surroundings: tuple[str, dict[str, str], Surroundings],
    experiments: list[dict[str, Any]],
    data: dict[str, Any],
    partition: dict[str, Any],
) -> Worker:
    # Those of the run: the process was forked earlier.
    folder, environment, code = surroundings
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code.install()
    parsed = [parse_experiment(values) for values in experiments]
    init_process(parsed[0].resources.threads)
    return Worker(*worker_arguments(parsed, Dataset.opened(data), Partition(**partition)))


class ForkedWorker:
    """A worker in a process of its own, forked for this run."""

    def __init__(self) -> None:
        global _works
        assert _forks is not None, "prepare() comes first"
        # Whose answer comes before the reports of ended workers, which would fill the connection.
        is_prepared()
        while _note_end(0):
            pass
        self.connection, there = socket.socketpair()
        with there:
            for end in (self.connection, there):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            try:
                socket.send_fds(_forks, [WORKER], [there.fileno()])
            except OSError as error:
                self.connection.close()
                # Later runs of this process use Ray.
                _works = False
                raise ProcessesLost("the process that forks the processes of this run has ended") from error
        self.pid: int | None = receive(self.connection)
        if self.pid is None:
            self.connection.close()
            raise ProcessesLost("no process could be forked for this run")
        # Of an earlier process of this number.
        _ended.pop(self.pid, None)

    def end(self) -> None:
        # None: it has ended, and its number may be another process's by now.
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and the connection."""
        self.end()
        self.connection.close()


def _shared(value: Any) -> Any:
    """A large array as the name of its file, so that it is in memory once."""
    if not isinstance(value, np.ndarray) or value.nbytes < LARGE:
        return value
    return shared_file(value) or shared_file(concatenated([value])) or value


class Forked:
    """Transport to worker processes on this machine. workers: number of processes."""

    memory = MappedMemory

    def __init__(self, experiments: list[Experiment], dataset: Dataset, partition: Partition, workers: int):
        data = {name: _shared(value) for name, value in vars(dataset).items()}
        dumped = [experiment.model_dump(mode="json") for experiment in experiments]
        surroundings = str(Path.cwd()), dict(os.environ), Surroundings.here(experiments[0])
        self._load = surroundings, dumped, data, vars(partition)
        self.timeout = experiments[0].resources.timeout
        self.workers = workers
        self.processes: dict[int, ForkedWorker] = {}
        self._waiting: dict[socket.socket, int] = {}
        self._lost: list[Answer] = []

    def start(self, worker: int) -> None:
        if worker in self.processes:
            self.processes.pop(worker).close()
        self.processes[worker] = ForkedWorker()
        # A process that is frozen takes nothing from its full socket.
        self.processes[worker].connection.settimeout(self.timeout or None)
        self.call(worker, "load_run", self._load)

    def publish(self, trees: list[Tree]) -> Any:
        return message_of(arrays_of(trees))

    def call(self, worker: int, method: str, arguments: tuple[Any, ...], shared: Any = None) -> None:
        connection = self.processes[worker].connection
        try:
            send(connection, (method, arguments, shared is not None))
            if shared is not None:
                send(connection, shared)
            self._waiting[connection] = worker
        except OSError as error:
            self._lost.append(Answer(worker, lost=self._cause(worker, error)))

    def wait(self, seconds: float) -> list[Answer]:
        answers, self._lost = self._lost, []
        for connection in wait(list(self._waiting), 0 if answers else seconds) if self._waiting else ():
            worker = self._waiting.pop(connection)  # type: ignore[arg-type]
            try:
                reply: Any = receive(connection)  # type: ignore[arg-type]
                answer = Answer(worker, lost=self._cause(worker)) if reply is None else Answer(worker, *reply)
            except TimeoutError as error:
                answer = Answer(worker, lost=self._cause(worker, error))
            answers.append(answer)
        return answers

    def sum_up(self, totals: list[Any], scale: float) -> Tree:
        return sum_trees(totals, scale)

    def name(self, worker: int) -> str:
        return f"process {worker} of this run"

    def kill(self, worker: int) -> None:
        self.processes[worker].end()

    def close(self) -> None:
        for process in self.processes.values():
            process.close()
        self.processes.clear()

    def _cause(self, worker: int, error: OSError | None = None) -> str:
        """Why a process is lost. error: of its connection."""
        if isinstance(error, TimeoutError):
            self.processes[worker].end()
            return f"it moved no data for {self.timeout:g} s, see resources.timeout"
        pid, self.processes[worker].pid = self.processes[worker].pid, None
        return _end_of(pid)


def _note_end(seconds: float) -> bool:
    """Note in `_ended` the next report of a worker's end; returns whether one has come within some seconds."""
    if _forks is None or not wait([_forks], max(0.0, seconds)):
        return False
    try:
        message = _forks.recv(64)
    except OSError:
        return False
    if message:
        number, status = map(int, message.split())
        _ended[number] = status
    return bool(message)


def _end_of(pid: int | None) -> str:
    """How a forked process has ended, as the process that forked it reports."""
    until = time.monotonic() + REPORTED_SECONDS
    while pid not in _ended and _note_end(until - time.monotonic()):
        pass
    if pid not in _ended:
        return "it ended for an unknown reason"
    status = _ended.pop(pid)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = ", as the system does when memory runs out" if number == signal.SIGKILL else ""
        return f"ended by signal {signal.Signals(number).name}{hint}"
    return f"it ended with exit code {os.waitstatus_to_exitcode(status)}"
