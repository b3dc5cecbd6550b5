"""Silent processes: signs of life, and the maximum time without one."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from hedgerow.platform.config.resources import Resources

LEAST, TIMES = 60.0, 10
"""With `silence: auto`: minimum in seconds, and multiple of the longest exchange so far."""

BEAT = 1.0
"""Seconds between two signs of life."""


class Signs:
    """Signs of life and notices of a process, in a file that its driver reads, since a busy actor answers no calls."""

    def __init__(self, file: Path):
        self.file = file
        self._last, self._read = 0.0, 0

    def begin(self) -> None:
        """Create an empty file. Without the file, signs and notices are not stored."""
        self.file.write_text("")

    def alive(self) -> None:
        """Give a sign of life, at most one per BEAT."""
        if time.monotonic() >= self._last + BEAT:
            # A failure to give a sign must not end the work.
            with suppress(OSError):
                os.utime(self.file)
            self._last = time.monotonic()

    def notice(self, sentence: str) -> None:
        """Write a sentence for the user."""
        with suppress(FileNotFoundError), self.file.open("r+") as file:
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(sentence) + "\n")

    def news(self) -> list[str]:
        """Sentences since the last call."""
        with suppress(FileNotFoundError), self.file.open() as file:
            file.seek(self._read)
            lines = [line for line in file.readlines() if line.endswith("\n")]
            self._read += sum(len(line.encode()) for line in lines)
            return [json.loads(line) for line in lines]
        return []

    def remove(self) -> None:
        """Remove the file."""
        self.file.unlink(missing_ok=True)


class Silence:
    """Longest silence so far of active processes, and the limits that follow from it.

    resources: section with `silence` and `actor_timeout` of an experiment.
    """

    def __init__(self, resources: Resources):
        self.limit, self.timeout, self.longest = resources.silence, resources.actor_timeout, 0.0

    def is_notable(self, seconds: float) -> bool:
        """Whether to notify the user."""
        return seconds > (max(LEAST, TIMES * self.longest) if self.limit == "auto" else self.limit)

    def is_too_long(self, seconds: float) -> bool:
        """Whether the process is replaced."""
        return self.timeout is not None and seconds > self.timeout

    def ended(self, seconds: float) -> None:
        """Record a silence that was no problem."""
        self.longest = max(self.longest, seconds)


class Watched(Protocol):
    """Handle of a process."""

    def place(self) -> tuple[str, bool]:
        """Process and node, for sentences, and whether the process has started."""
        ...

    def kill(self) -> None:
        """End the process."""
        ...


class WatchedActor:
    """Handle of an actor of Ray."""

    def __init__(self, actor: Any):
        self.actor = actor

    def place(self) -> tuple[str, bool]:
        """See Watched."""
        # Local processes are watched without Ray.
        from hedgerow.platform.common.ray_private import actor_record

        known = actor_record(self.actor)
        if known.get("State") != "ALIVE":
            return "(not started yet)", False
        return f"(pid {known['Pid']}) on node {known['Address']['IPAddress']}", True

    def kill(self) -> None:
        """End its process; Ray replaces it if it is to be restarted."""
        import ray

        ray.kill(self.actor)


class Watch:
    """Measures how long an active process has been silent.

    who: its name in sentences. process: its handle. files: each change of one is a sign of life.
    """

    def __init__(self, who: str, process: Watched, silence: Silence, *files: Path):
        self.who, self.process, self.silence, self.files = who, process, silence, files
        self._begun = self._since = time.monotonic()
        self._stamps = self._look()
        self.noticed = self.killed = False

    def look(self, notify: Callable[[str], None]) -> bool:
        """Report a silent process, and kill it if it is silent for too long; returns whether it was killed."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps
            self.sign()
        seconds = time.monotonic() - self._since
        notable = self.silence.is_notable(seconds) and not self.noticed
        too_long = self.silence.is_too_long(seconds)
        if self.killed or not (notable or too_long):
            return self.killed
        where, started = self.process.place()
        if not started and time.monotonic() < self._begun + LEAST:
            # Starting a process takes seconds.
            self._since = time.monotonic()
            return False
        if notable:
            self.noticed = True
            notify(f"{self.who} {where} has been silent for {seconds:.0f} s; {self._prospect}")
        if too_long:
            self.killed = True
            notify(
                f"{self.who} {where} was silent for more than {self.silence.timeout:g} s (resources.actor_timeout) "
                "and was replaced"
            )
            self.process.kill()
        return self.killed

    def sign(self) -> None:
        """End the current silence."""
        if not self.noticed:
            self.silence.ended(time.monotonic() - self._since)
        self.renew()

    def renew(self) -> None:
        """Restart the measurement: the process has nothing to do, so its silence means nothing."""
        self._since, self.noticed = time.monotonic(), False

    @property
    def _prospect(self) -> str:
        if self.silence.timeout is None:
            return "still waiting for it (set resources.actor_timeout to replace silent processes)"
        return f"it will be replaced after {self.silence.timeout:g} s"

    def _look(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in self.files]


def _stamp(file: Path) -> tuple[int, int] | None:
    """Time of the last change, and size; None without a file."""
    try:
        # Open the file: NFS refreshes attributes only then.
        with file.open() as opened:
            stat = os.fstat(opened.fileno())
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size
