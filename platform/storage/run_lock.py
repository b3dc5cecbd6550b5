"""Lock of a run folder: only one process at a time runs or resumes the run or search that is stored there.

A claim is a numbered file in RUN/.lock. The highest number holds the lock. Its process touches the file every few
seconds, and adds a line when it releases the lock. A process may claim the next number once the highest one is released
or its process is gone. Only one process can create a file of a given number, so if several processes judge a claim
alike, exactly one of them takes it over. This needs only exclusive creation, which network file systems have, too; the
package filelock leaves a dead holder's lock in place on file systems that cannot exchange two names, such as NFS.
"""

import json
import os
import secrets
import socket
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from hedgerow.platform.common.errors import UserError

BEAT = 3.0
"""Seconds between two heartbeats of a holder."""

PATIENCE = 30.0
"""Seconds without a heartbeat after which a holder on another machine counts as gone."""

LOOK = 0.2
"""Seconds between two checks for a heartbeat."""

RELEASED = "released"

_HELD: set[str] = set()
"""Tokens of the locks that this process holds."""


@dataclass(frozen=True)
class Holder:
    """Process that made a claim.

    home: where its process id is valid, see `_home`. start: start time of its process, in ticks since boot. place:
    inode of the folder in which the claim was made, None for a claim of an earlier version.
    """

    pid: int
    host: str
    since: str
    home: str
    start: str
    token: str
    place: int | None = None

    def is_here(self) -> bool:
        """Whether its process can be looked up from here."""
        return bool(self.home) and self.home == _home()

    def is_alive(self) -> bool:
        """Whether the process that made the claim still runs and holds it, where it can be looked up."""
        if self.pid == os.getpid() and self.start == _start(self.pid):
            return self.token in _HELD
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        start = _start(self.pid)
        return start is None or start == self.start


@dataclass(frozen=True)
class Claim:
    """A claim on a run folder. Any process that sees the folder can verify it.

    run: absolute path of the folder.
    """

    run: Path
    number: int

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken over the lock, since this one sent no heartbeat."""
        return _last(self.run / ".lock") > self.number

    def check(self) -> None:
        """Raise UserError when another process has taken over the lock."""
        if self.is_lost:
            raise UserError(
                f"{self.run} was taken over by another process, since this one gave no sign of life for {PATIENCE:g} "
                "seconds (was it suspended?); the run continues there"
            )


class RunLock:
    """Context manager that holds the lock of a run folder. Raises UserError when another process holds it.

    A holder on the same machine is looked up by its process id and start time. A holder on another machine, or in
    another container, counts as gone when its claim has not been touched for `PATIENCE` seconds of this process's own
    clock. The same applies to the holder of a claim in a copy of the folder.
    """

    def __init__(self, run: Path):
        self.run, self.folder = run, run / ".lock"
        self._number = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run-lock", daemon=True)
        self._token = secrets.token_hex(16)

    def __enter__(self) -> "RunLock":
        # Added before the claim is visible: other threads of this process look here.
        _HELD.add(self._token)
        try:
            self.folder.mkdir(exist_ok=True)
            while not self._number:
                last = _last(self.folder)
                if last and (holder := self._holder(last)):
                    raise UserError(
                        f"{self.run} is being run by process {holder.pid} on {holder.host} since {holder.since}; wait "
                        f"until it ends, or stop it (`kill {holder.pid}` there), then `hedgerow resume {self.run}`"
                    )
                self._claim(last + 1)
        except BaseException as error:
            _HELD.discard(self._token)
            if isinstance(error, OSError):
                raise UserError(
                    f"{self.run} cannot be written ({error.strerror}); make it writable, or copy it and use the copy"
                ) from None
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        _HELD.discard(self._token)
        # Without O_CREAT: the file of a claim that was taken over no longer exists.
        with suppress(OSError):
            descriptor = os.open(self._file(self._number), os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, f"{RELEASED}\n".encode())
            finally:
                os.close(descriptor)

    @property
    def claim(self) -> Claim:
        """Claim by which this process holds the lock."""
        return Claim(self.run.absolute(), self._number)

    def _claim(self, number: int) -> None:
        """Make the claim of this number; no effect if another process was faster."""
        file, pid = self._file(number), os.getpid()
        since = datetime.now().astimezone().isoformat(" ", timespec="seconds")
        mine = Holder(pid, socket.gethostname(), since, _home(), _start(pid) or "", self._token, self._place())
        try:
            claim = file.open("x")
        except FileExistsError:
            return
        try:
            with claim:
                claim.write(json.dumps(asdict(mine)) + "\n")
        except BaseException:
            file.unlink(missing_ok=True)
            raise
        if _last(self.folder) > number:
            # The claim that was judged was replaced long ago, and its number was free again.
            file.unlink(missing_ok=True)
            return
        self._number = number
        for older in _numbers(self.folder):
            if older < number:
                self._file(older).unlink(missing_ok=True)

    def _holder(self, number: int) -> Holder | None:
        """Process that holds the lock by this claim; None when it is released or its process is gone.

        Waits for a heartbeat of a process that cannot be looked up from here.
        """
        file = self._file(number)
        last_stamp, until = None, time.monotonic() + PATIENCE
        while True:
            try:
                # Opened each time, so that a network file system asks its server.
                with file.open(errors="replace") as stream:
                    stamp, lines = os.fstat(stream.fileno()).st_mtime_ns, stream.read().splitlines()
            except FileNotFoundError:
                return None
            if RELEASED in lines[1:]:
                return None
            holder = _parsed(lines)
            if holder and holder.is_here():
                if not holder.is_alive():
                    return None
                if holder.place in (None, self._place()):
                    return holder
                # Copy of a folder, whose claim is no longer touched. An inode alone is no proof: some file systems
                # invent them.
            if holder and last_stamp not in (None, stamp):
                return holder
            if time.monotonic() > until:
                return None
            # A claim without a holder is being written, or its process was killed while it wrote.
            last_stamp = stamp if holder else None
            time.sleep(LOOK)

    def _place(self) -> int:
        return self.folder.stat().st_ino

    def _beat(self) -> None:
        while not self._ended.wait(BEAT):
            with suppress(OSError):
                os.utime(self._file(self._number))

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:08d}"


def is_abandoned(run: Path) -> bool:
    """Whether the last process that held the lock of a run folder released it, or ran on this machine and is gone."""
    lock = RunLock(run)
    try:
        lines = lock._file(_last(lock.folder)).read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return False
    holder = _parsed(lines)
    return RELEASED in lines[1:] or (holder is not None and holder.is_here() and not holder.is_alive())


def _numbers(folder: Path) -> list[int]:
    """Numbers of the claims in a folder of claims."""
    return [int(file.name) for file in folder.iterdir() if file.name.isdecimal()]


def _last(folder: Path) -> int:
    """Number of the claim that holds the lock; 0 when there is none."""
    try:
        return max(_numbers(folder), default=0)
    except FileNotFoundError:
        return 0


def _parsed(lines: list[str]) -> Holder | None:
    """Holder in a claim's file; None while the file is incomplete."""
    try:
        holder = Holder(**json.loads(lines[0]))
    except (IndexError, ValueError, TypeError):
        return None
    return holder if isinstance(holder.pid, int) and holder.pid > 0 else None


def _home() -> str:
    """Name of the space in which process ids are valid: this boot of this machine, and the container.

    Empty if the system does not provide it; then only heartbeats count.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _start(pid: int) -> str | None:
    """Start time of a process, in ticks since boot; empty for one that has ended, None if it cannot be read."""
    try:
        # The name of the program, in parentheses, may contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]
