"""Worker processes on this machine without Ray. They are forked: they start at once, and share this process's memory.

With GPUs, a gradient that torch computes in a process breaks gradients in processes that are forked from it later.
Workers are therefore forked from a process of its own, which is forked early and computes nothing.
"""

import atexit
import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import cpu_count

from hedgerow.algorithms.core.own_code import Surroundings
from hedgerow.algorithms.core.pytree import Tree, tree_map
from hedgerow.platform.actors.actor_room import actors_that_fit, choose_actors, local_resources
from hedgerow.platform.actors.silence import BEAT, Silence, Watch
from hedgerow.platform.actors.small_messages import pack, receive, send, unpack
from hedgerow.platform.common.errors import ProcessesLost
from hedgerow.platform.common.signals import TERMINATIONS
from hedgerow.platform.config.experiment import Experiment
from hedgerow.platform.config.loader import parse_experiment
from hedgerow.platform.data import Dataset, Partition
from hedgerow.platform.data.mapped_arrays import LARGE, ArrayFile, concatenated, shared_file
from hedgerow.platform.runtime.assignment import owner_of
from hedgerow.platform.runtime.coordinator import Coordinator
from hedgerow.platform.runtime.executor import Executor
from hedgerow.platform.runtime.launch import build_coordinator, worker_arguments
from hedgerow.platform.runtime.process import init_process
from hedgerow.platform.runtime.shards import ChunkTooLarge, WorkerLost
from hedgerow.platform.runtime.worker import Worker
from hedgerow.platform.storage.run_lock import Claim

BUFFER = 2**22
"""Bytes of a socket's buffer: larger messages need more switches between the two processes."""

TRIAL = 5
"""Maximum seconds of the trial whether forked processes can compute."""

_PARENT_DEATH = 1
"""PR_SET_PDEATHSIG of prctl: the signal that Linux sends a process when its parent ends."""

_forks: socket.socket | None = None
"""Connection to the process that forks workers."""

_works: bool | None = None
"""Whether its children can compute gradients; None: it has not yet answered."""


def prepare() -> None:
    """Fork the process that forks workers, once. Call it after the imports and before the first gradient.

    Does nothing where processes cannot be forked safely: outside Linux, and in a process with several threads.
    """
    global _forks, _works
    if _forks is not None or sys.platform != "linux" or threading.active_count() > 1:
        return
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    _works = None
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    with warnings.catch_warnings():
        # From Python 3.12 on, about threads of libraries. The trial shows whether they matter.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = os.fork()
    if process == 0:
        # Else the end of a pipe of this process would not be seen.
        for opened in [int(entry.name) for entry in Path("/proc/self/fd").iterdir()]:
            if opened > 2 and opened != there.fileno():
                # The folder's own descriptor is closed already.
                with suppress(OSError):
                    os.close(opened)
        _run_child(lambda: _fork_workers(there))
    there.close()
    _forks = here
    atexit.register(_end, here, process)


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
    """Say whether children can compute gradients, then fork a worker for each connection that arrives, until the parent
    closes its end.
    """
    if (trial := os.fork()) == 0:
        # Silent: it fails, or waits forever, if the process that calls `prepare` has computed before.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(TRIAL)
        _run_child(_compute)
    failed = os.waitpid(trial, 0)[1]
    # Workers that end leave nothing behind.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with suppress(ConnectionError):
        requests.send(b"0" if failed else b"1")
        while True:
            message, descriptors, _, _ = socket.recv_fds(requests, 1, 1)
            if not message:
                return
            connection = socket.socket(fileno=descriptors[0])
            # Without memory for another process, the request is answered by the end of the connection.
            with suppress(OSError):
                if os.fork() == 0:
                    requests.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
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
    while (message := receive(connection)) is not None:
        method, arguments, shared = message
        reply: tuple[Any, Exception | None]
        try:
            if method == "load_run":
                worker, answer = _build_worker(*arguments), None
            else:
                answer = getattr(worker, method)(*arguments, **shared)
            reply = answer, None
        except Exception as error:
            error.add_note("".join(traceback.format_tb(error.__traceback__)))
            reply = None, _portable(error)
        try:
            send(connection, reply)
        except OSError:
            return


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
    rank: int,
    actors: int,
    shards: int,
) -> Worker:
    # Those of the run: the process was forked earlier.
    folder, environment, code = surroundings
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    code.install()
    parsed = [parse_experiment(values) for values in experiments]
    init_process(parsed[0].resources.threads)
    opened: dict[str, Any] = {name: v.open() if isinstance(v, ArrayFile) else v for name, v in data.items()}
    arguments = worker_arguments(parsed, Dataset(**opened), Partition(**partition))
    return Worker(
        *arguments,
        name=f"states-{rank:04d}",
        owns=lambda clients: owner_of(clients, shards) % actors == rank,
    )


def runs_here(experiment: Experiment, address: str | None) -> bool:
    """Whether the clients of an experiment run in processes of this machine that are not Ray's.

    They do with `executor: auto`, without GPUs and without a cluster, if this process has been prepared.
    """
    resources = experiment.resources
    named = address or os.environ.get("RAY_ADDRESS")
    if resources.executor != "auto" or resources.gpus_per_actor or named not in (None, "local"):
        return False
    ray = sys.modules.get("ray")
    return is_prepared() and not (ray and ray.is_initialized())


@contextmanager
def local_coordinator(
    experiment: Experiment,
    dataset: Dataset,
    partition: Partition,
    checkpoints: Path,
    num_shards: int | None,
    notify: Callable[[str], None],
    claim: Claim | None,
) -> Iterator[Coordinator]:
    """Coordinator in this process, with as many processes for the clients as Ray would have actors on this machine.

    num_shards: original number of shares of a run that is resumed; None: new run.
    """
    resources, cohort = experiment.resources, experiment.cohort_size(len(partition))
    # The memory of this machine is asked of Ray, whose import takes a second.
    here = [local_resources() if resources.memory_mb else {"CPU": float(cpu_count())}]
    shards = num_shards or len(choose_actors(resources, cohort, here))
    workers = max(1, min(shards, actors_that_fit(resources, here)))
    try:
        with closing(LocalExecutor([experiment], dataset, partition, workers, shards, notify)) as executor:
            coordinator = build_coordinator([experiment], dataset, partition, executor, [checkpoints], claim)
            coordinator.on_notice = notify
            yield coordinator
    except ProcessesLost as error:
        raise ProcessesLost(
            f"{error}, perhaps out of memory; `hedgerow resume {checkpoints.parent}` continues from the last checkpoint"
        ) from error


class LocalProcess:
    """A worker in a process of its own, forked for this run."""

    def __init__(self) -> None:
        global _forks, _works
        assert _forks is not None, "prepare() comes first"
        self.connection, there = socket.socketpair()
        with there:
            for end in (self.connection, there):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
            try:
                socket.send_fds(_forks, [b"f"], [there.fileno()])
            except OSError as error:
                self.connection.close()
                # Later runs of this process use Ray.
                _works = False
                raise ProcessesLost("the process that forks the processes of this run has ended") from error
        self.pid: int | None = receive(self.connection)
        if self.pid is None:
            self.connection.close()
            raise ProcessesLost("no process could be forked for this run")

    def place(self) -> tuple[str, bool]:
        """Its process, and whether it has started."""
        return f"(pid {self.pid})", True

    def kill(self) -> None:
        """End the process."""
        # None: it has ended, and its number may be another process's by now.
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process, and the connection."""
        self.kill()
        self.connection.close()


def _shared(value: Any) -> Any:
    """A large array as the name of its file, so that it is in memory once."""
    if not isinstance(value, np.ndarray) or value.nbytes < LARGE:
        return value
    return shared_file(value) or shared_file(concatenated([value])) or value


class LocalExecutor(Executor):
    """Runs exchanges in processes on this machine. Processes that die or stay silent for too long are replaced.

    num_workers: number of processes; share i of the work runs in process i modulo this number. notify: receives
    sentences about silent processes.
    """

    def __init__(
        self,
        experiments: list[Experiment],
        dataset: Dataset,
        partition: Partition,
        num_workers: int,
        num_shards: int,
        notify: Callable[[str], None],
    ):
        super().__init__(experiments, None, num_shards)
        self.notify, self.silence = notify, Silence(experiments[0].resources)
        data = {name: _shared(value) for name, value in vars(dataset).items()}
        dumped = [experiment.model_dump(mode="json") for experiment in experiments]
        surroundings = str(Path.cwd()), dict(os.environ), Surroundings.here()
        self._load = surroundings, dumped, data, vars(partition)
        self.processes: list[LocalProcess] = [LocalProcess() for _ in range(num_workers)]
        try:
            if lost := self._begin(range(num_workers)):
                raise ProcessesLost(f"process {lost[0]} of this run ended while it was starting")
        except BaseException:
            self.close()
            raise

    @property
    def num_workers(self) -> int:
        return len(self.processes)

    def close(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.close()

    def _begin(self, ranks: Any) -> list[int]:
        """Build the workers of new processes; returns the ranks of those that have ended meanwhile."""
        load: dict[int, Any] = {
            rank: ("load_run", (*self._load, rank, self.num_workers, self.num_shards), {}) for rank in ranks
        }
        _, errors, lost = self._answers(load)
        if errors:
            raise errors[0]
        return lost

    def _send(
        self, method: str, arguments: dict[int, tuple], broadcasts: list[Tree] | None = None, again: bool = False
    ) -> list[Any]:
        shared: dict[str, Any] = {}
        if broadcasts is not None:
            shared["broadcasts"] = [
                tree_map(lambda leaf: np.asarray(leaf.numpy(), order="C"), one) for one in broadcasts
            ]
        calls = {rank: (method, mine, shared) for rank, mine in arguments.items()}
        answers, errors, lost = self._answers(calls)
        for rank in lost:
            self.processes[rank].close()
            self.processes[rank] = LocalProcess()
        lost_again = self._begin(lost)
        self._replaced(lost)
        for error in errors:
            if not isinstance(error, ChunkTooLarge):
                raise error
        if lost_again or (lost and not (again and self.restore_states())):
            # Before a chunk that is too large: the states of the new process have to be restored.
            raise WorkerLost(f"process {(lost_again or lost)[0]} of this run ended")
        if errors:
            raise errors[0]
        if lost:
            repeated = self._send(method, {rank: arguments[rank] for rank in lost}, broadcasts)
            answers |= dict(zip(lost, repeated, strict=True))
        return [answers[rank] for rank in arguments]

    def _call(self, worker: int, method: str, *arguments: Any) -> Any:
        return self._send(method, {worker: arguments})[0]

    def _answers(self, calls: dict[int, Any]) -> tuple[dict[int, Any], list[Exception], list[int]]:
        """Answers by rank, errors of calls, and ranks of processes that have ended."""
        begun, lost = time.monotonic(), []
        waiting: dict[socket.socket, int] = {}
        for rank, call in calls.items():
            connection = self.processes[rank].connection
            try:
                send(connection, call)
                waiting[connection] = rank
            except OSError:
                lost.append(rank)
        watches = {rank: Watch(f"process {rank}", self.processes[rank], self.silence) for rank in waiting.values()}
        answers: dict[int, Any] = {}
        errors: list[Exception] = []
        while waiting:
            ready: list[Any] = wait(list(waiting), BEAT)
            for connection in ready:
                rank = waiting.pop(connection)
                reply = receive(connection)
                if reply is None:
                    self.processes[rank].pid = None
                    lost.append(rank)
                elif reply[1] is not None:
                    errors.append(reply[1])
                else:
                    answers[rank] = reply[0]
            if not ready:
                for rank in waiting.values():
                    watches[rank].look(self.notify)
        if not any(watch.noticed or watch.killed for watch in watches.values()):
            self.silence.ended(time.monotonic() - begun)
        return answers, errors, sorted(lost)
