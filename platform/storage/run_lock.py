"""Lock of a run folder: only one process at a time runs or resumes the run or search that is stored there.

RUN/.lock is a folder with one file. Its name says which process holds the lock, and its time of modification is that
process's heartbeat. A process takes the lock by renaming the file from the name that it has read: if several processes
judge that the lock is free, one of them succeeds. This needs only atomic renames, which network file systems have, too;
the package filelock leaves the lock of a dead process in place on file systems that cannot exchange two names.
"""

import os
import secrets
import shutil
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path

from hedgerow.platform.common.errors import UserError

HEARTBEAT_SECONDS = 1.0

TIMEOUT_SECONDS = 30.0
"""Seconds without a heartbeat, on the clock of the process that waits, after which a holder counts as gone."""

FREE = "0"
"""Name of the file of a free lock. Names of holders begin with a date."""


@dataclass(frozen=True)
class Claim:
    """Right to write to a run folder, which any process that sees the folder can verify. file: file of its lock."""

    file: Path

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over the lock."""
        return not self.file.exists()

    def check(self) -> None:
        """Raise UserError when another process has taken over the lock."""
        if self.is_lost:
            raise UserError(
                f"{self.file.parent.parent} was taken over by another process, since this one gave no sign of life for "
                f"{TIMEOUT_SECONDS:g} seconds (was it suspended?); the run continues there"
            )


class RunLock:
    """Context manager that holds the lock of a run folder. Raises UserError when another process holds it."""

    def __init__(self, run: Path):
        self.run, self.folder = run, run.absolute() / ".lock"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._touch, name="run-lock", daemon=True)

    def __enter__(self) -> "RunLock":
        try:
            self._take()
        except OSError as error:
            raise UserError(
                f"{self.run} cannot be written ({error.strerror}); make it writable, or copy it and use the copy"
            ) from None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        with suppress(OSError):
            self.claim.file.rename(self.folder / FREE)

    def _take(self) -> None:
        while (file := _file(self.folder)) is None:
            # Not empty, so that only one process can put it in place.
            aside = self.run / f".lock-{secrets.token_hex(4)}"
            aside.mkdir()
            (aside / FREE).touch()
            try:
                aside.rename(self.folder)
            except OSError:
                shutil.rmtree(aside)
        if _is_held(file):
            since, host, pid, *_ = file.name.split("~")
            raise UserError(
                f"{self.run} is being run by process {pid} on {host} since {since}; wait until it ends, or stop it "
                f"(`kill {pid}` there), then `hedgerow resume {self.run}`"
            )
        since = datetime.now().astimezone().isoformat(" ", timespec="seconds")
        name = f"{since}~{socket.gethostname()}~{os.getpid()}~{_home()}~{secrets.token_hex(4)}"
        self.claim = Claim(self.folder / name)
        with suppress(FileNotFoundError):
            file.rename(self.claim.file)
            os.utime(self.claim.file)
        if self.claim.is_lost:
            # Another process was faster.
            self._take()

    def _touch(self) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            with suppress(OSError):
                os.utime(self.claim.file)


def is_abandoned(run: Path) -> bool:
    """Whether the last process that held the lock of a run folder released it, or ran on this machine and is gone."""
    file = _file(run / ".lock")
    return file is not None and _is_released(file)


def _file(folder: Path) -> Path | None:
    """File of a lock, None before the first process holds it. Of several files, in a copy, the last counts."""
    return max(folder.iterdir(), default=None) if folder.exists() else None


def _is_released(file: Path) -> bool:
    """Whether a lock is free, or the process that holds it can be looked up here and is gone."""
    try:
        _, _, pid, home, _ = file.name.split("~")
        if not home or home != _home():
            return False
        os.kill(int(pid), 0)
        # A zombie. The name of the program, in parentheses, may contain spaces.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (ValueError, ProcessLookupError, FileNotFoundError):
        return True
    except PermissionError:
        return False


def _is_held(file: Path) -> bool:
    """Whether the process that holds a lock is alive. Waits for its heartbeat."""
    heartbeat, until = None, time.monotonic() + TIMEOUT_SECONDS
    with suppress(FileNotFoundError):
        while time.monotonic() < until and not _is_released(file):
            last = heartbeat
            # Opened each time, so that a network file system asks its server.
            with file.open() as stream:
                heartbeat = os.fstat(stream.fileno()).st_mtime_ns
            if last not in (None, heartbeat):
                return True
            time.sleep(HEARTBEAT_SECONDS / 10)
    return False


def _home() -> str:
    """Name of the boot and the container in which process ids are valid; empty if the system does not provide it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return sha256(f"{boot} {Path('/proc/self/ns/pid').readlink()}".encode()).hexdigest()[:16]
    except OSError:
        return ""
