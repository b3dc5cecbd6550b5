"""Python program that runs in a forked process, with the modules of the process that it is forked from."""

import json
import os
import random
import runpy
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import numpy as np

from hedgerow.platform.common.signals import TERMINATIONS

LARGEST = 2**20
"""Maximum size of a request in bytes: the system allows less."""

FIRST_TO_END = "1000"
"""Value that Ray sets for its processes, so that the system ends one of them when memory runs out: the highest one."""


def run_program(request: socket.socket) -> NoReturn:
    """Run the program that a request names, see `fork_request`, and end this process, without functions of `atexit`."""
    # Not on Windows, where nothing is forked.
    import resource

    code = 1
    try:
        message, streams, _, _ = socket.recv_fds(request, LARGEST, 3)
        arguments, environment, folder, files = json.loads(message)
        # What is typed at a terminal, such as Ctrl-C, is for the command.
        os.setpgrp()
        for number in (signal.SIGCHLD, *TERMINATIONS):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        request.send(b"1")
        request.close()
        # The descriptors stay when Ray replaces these objects.
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(number, mode, buffering=1, closefd=False) for number, mode in enumerate("rww")
        )
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, tuple(files))
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(FIRST_TO_END)
        random.seed()
        np.random.seed()
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for written in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                written.flush()
        os._exit(code)
