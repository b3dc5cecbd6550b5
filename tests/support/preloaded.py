"""Python processes that start with torch already imported, which is most of what a short command costs.

One process per pytest process imports torch, starts nothing else, and forks for every request. The forks are children
of the pytest process (CLONE_PARENT), so that `subprocess.Popen` waits for them and signals them as for any other child.
"""

import ctypes
import gc
import inspect
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

SYS_CLONE = {"x86_64": 56, "aarch64": 220}
CLONE_PARENT = 0x8000
AVAILABLE = sys.platform == "linux" and platform.machine() in SYS_CLONE
LONGEST = 1 << 20
"""Maximum length of a request in bytes: the arguments and the environment."""

_lock = threading.Lock()


class PreloadedPython(subprocess.Popen):
    """A process as of `subprocess.Popen([sys.executable, *arguments])`; the arguments begin with -m or -c.

    It has Python's own handler of SIGINT. Other options of Popen than its streams, `cwd`, `env` and `start_new_session`
    have no effect.
    """

    def __init__(self, arguments: Any, **options: Any):
        super().__init__([sys.executable, *map(str, arguments)], **options)

    if AVAILABLE:

        def _execute_child(self, *values: Any) -> None:
            given = inspect.signature(subprocess.Popen._execute_child).bind(self, *values).arguments
            pipes = [given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")]
            request = {
                "arguments": given["args"][1:],
                "cwd": str(given["cwd"] or Path.cwd()),
                "env": dict(os.environ if given["env"] is None else given["env"]),
                "session": given["start_new_session"],
            }
            streams = [fd if own == -1 else own for fd, own in enumerate((pipes[0], pipes[3], pipes[5]))]
            try:
                with _lock:
                    socket.send_fds(fork_server(), [json.dumps(request).encode()], streams)
                    self.pid = int(fork_server().recv(100))
                self._child_created = True
            finally:
                self._close_pipe_fds(*pipes)


def run_python(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The result of a process that must end with exit code 0."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with PreloadedPython(arguments, text=True, **pipes, **options) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


@cache
def fork_server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONGEST)
    nothing = dict.fromkeys(("stdin", "stdout"), subprocess.DEVNULL)
    # NumPy's linear algebra would start threads, which a fork does not have and would wait for at its end.
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=alone, **nothing)
    theirs.close()
    return ours


# ---- the server --------------------------------------------------------------------------------------------------


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for every request. Returns a request in the process that was forked for it."""
    while True:
        message, streams, *_ = socket.recv_fds(requests, LONGEST, 3)
        if not message:
            os._exit(0)  # The pytest process has ended.
        if not fork_sibling():
            request = json.loads(message)
            for own, fd in enumerate(streams):
                os.dup2(fd, own)
                os.close(fd)
            if request["session"]:
                os.setsid()
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(request["env"])
            signal.signal(signal.SIGINT, signal.default_int_handler)
            requests.send(str(os.getpid()).encode())
            requests.close()
            return request
        for fd in streams:
            os.close(fd)


def fork_sibling() -> int:
    """`os.fork` for a child of this process's parent."""
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    # Unlike CDLL, PyDLL keeps Python's global lock during the call.
    pid = ctypes.PyDLL(None).syscall(SYS_CLONE[platform.machine()], CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    (python.PyOS_AfterFork_Parent if pid else python.PyOS_AfterFork_Child)()
    if pid < 0:
        os._exit(1)
    return pid


def execute(arguments: list[str]) -> None:
    """Run what follows `python`, as Python does."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    kind, what, *rest = arguments
    sys.path[0] = "" if kind == "-c" else str(Path.cwd())
    sys.argv = [kind, *rest]
    if kind == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), main.__dict__)
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    gc.disable()
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()
    assert len(os.listdir("/proc/self/task")) == 1, "torch has started threads, which a fork would not have"  # noqa: PTH208
    execute(serve(socket.socket(fileno=int(sys.argv[1])))["arguments"])
