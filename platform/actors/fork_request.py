"""Program that Ray starts in place of Python: it asks for Ray's program to be run in a forked process, see `forked`.

    python -IS fork_request.py SOCKET PROGRAM [ARGUMENT ...]

It imports little, since it runs for each process. Without an answer at the socket it becomes an ordinary Python.
"""

import json
import os
import resource
import socket
import sys
from pathlib import Path


def run_forked(path: str, arguments: list[str]) -> bool:
    """Send arguments, environment, working directory, limit of open files and standard streams; returns whether a
    process runs with them.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    message = json.dumps([arguments, dict(os.environ), str(Path.cwd()), files]).encode()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.connect(path)
            socket.send_fds(connection, [message], [0, 1, 2])
            return bool(connection.recv(1))
    except OSError:
        return False


if __name__ == "__main__" and not run_forked(sys.argv[1], sys.argv[2:]):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
