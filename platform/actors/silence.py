"""Silent processes: signs of life, and how long a process may show none."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from hedgerow.platform.common.ray_private import actor_record
from hedgerow.platform.config.resources import Resources

LEAST, TIMES = 60.0, 10
"""With `silence: auto`: seconds at least, and multiple of the longest exchange so far."""

BEAT = 1.0
"""Seconds between two signs of life."""


class Signs:
    """Signs of life and notices of a process, in a file that its driver reads: a busy actor answers no call."""

    def __init__(self, file: Path):
        self.file = file
        self._last, self._read = 0.0, 0

    def begin(self) -> None:
        """Make an empty file. Without one, neither signs nor notices are left."""
        self.file.write_text("")

    def alive(self) -> None:
        """Give a sign of life, at most one per BEAT."""
        if time.monotonic() >= self._last + BEAT:
            # A sign that cannot be given must not end the work that gives it.
            with suppress(OSError):
                os.utime(self.file)
            self._last = time.monotonic()

    def notice(self, sentence: str) -> None:
        """Leave a sentence for the user."""
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
    """Longest silence so far of processes that were at work, and what follows from it.

    resources: `silence` and `actor_timeout` of an experiment.
    """

    def __init__(self, resources: Resources):
        self.limit, self.timeout, self.longest = resources.silence, resources.actor_timeout, 0.0

    def is_notable(self, seconds: float) -> bool:
        """Whether the user should know."""
        return seconds > (max(LEAST, TIMES * self.longest) if self.limit == "auto" else self.limit)

    def is_too_long(self, seconds: float) -> bool:
        """Whether the process is replaced."""
        return self.timeout is not None and seconds > self.timeout

    def ended(self, seconds: float) -> None:
        """Count a silence that was none to worry about."""
        self.longest = max(self.longest, seconds)


class Watch:
    """Measures how long a process that is at work has been silent.

    who: its name in sentences. actor: its handle. files: each change of one is a sign of life.
    """

    def __init__(self, who: str, actor: Any, silence: Silence, *files: Path):
        self.who, self.actor, self.silence, self.files = who, actor, silence, files
        self._begun = self._since = time.monotonic()
        self._stamps = self._look()
        self.noticed = self.killed = False

    def look(self, notify: Callable[[str], None]) -> bool:
        """Report a process that is silent, and kill it when that is too long; returns whether it was killed."""
        stamps = self._look()
        if stamps != self._stamps:
            self._stamps = stamps
            self.sign()
        seconds = time.monotonic() - self._since
        notable = self.silence.is_notable(seconds) and not self.noticed
        too_long = self.silence.is_too_long(seconds)
        if self.killed or not (notable or too_long):
            return self.killed
        where, started = _place(self.actor)
        if not started and time.monotonic() < self._begun + LEAST:
            # It takes seconds to start a process.
            self._since = time.monotonic()
            return False
        if notable:
            self.noticed = True
            notify(f"{self.who} {where} has been silent for {seconds:.0f} s and is {self._prospect}")
        if too_long:
            self.killed = True
            notify(
                f"{self.who} {where} was silent for more than {self.silence.timeout:g} s (resources.actor_timeout) "
                "and was replaced"
            )
            ray.kill(self.actor)
        return self.killed

    def sign(self) -> None:
        """End the present silence."""
        if not self.noticed:
            self.silence.ended(time.monotonic() - self._since)
        self.renew()

    def renew(self) -> None:
        """Begin anew: the process has nothing to do, and its silence says nothing."""
        self._since, self.noticed = time.monotonic(), False

    @property
    def _prospect(self) -> str:
        if self.silence.timeout is None:
            return "waited for (resources.actor_timeout would replace it)"
        return f"replaced after {self.silence.timeout:g} s"

    def _look(self) -> list[tuple[int, int] | None]:
        return [_stamp(file) for file in self.files]


def _stamp(file: Path) -> tuple[int, int] | None:
    """Time of the last change and size."""
    try:
        # Opened: NFS brings attributes up to date only then.
        with file.open() as opened:
            stat = os.fstat(opened.fileno())
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _place(actor: Any) -> tuple[str, bool]:
    """Process and node of an actor, and whether it has started."""
    known = actor_record(actor)
    if known.get("State") != "ALIVE":
        return "(not started yet)", False
    return f"(pid {known['Pid']}) on node {known['Address']['IPAddress']}", True
