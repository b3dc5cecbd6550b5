"""Errors that are shown to users."""

import errno
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TypeGuard

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of a file system that has no room: disk full, quota or file size limit reached."""

DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
"""Error numbers of a file that this user may not read or write."""


def is_disk_full(error: object) -> TypeGuard[OSError]:
    """Whether an error says that a file system has no room."""
    return isinstance(error, OSError) and error.errno in DISK_FULL


def first_line(error: BaseException) -> str:
    """First line of an error's message, at most 300 characters; the name of its class if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def one_line(error: BaseException) -> str:
    """An error's whole message on one line, at most 300 characters; the name of its class if the message is empty."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def say(sentence: str) -> None:
    """Print a sentence for the user on standard error."""
    print(f"hedgerow: {sentence}", file=sys.stderr, flush=True)


class _OneSentence:
    """Mixin of errors that a notebook shows as a single sentence, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UserError(_OneSentence, Exception):
    """A mistake in the user's input, described in one sentence that names the place and the fix.

    The command line prints it without a traceback and exits with code 2.
    """

    several: Sequence[str] = ()
    """One sentence per mistake, if there are several."""

    @property
    def sentences(self) -> list[str]:
        """One sentence per mistake."""
        return list(self.several) or [str(self)]


def unwritable(place: str, target: Path, error: Exception) -> UserError:
    """UserError about a file or a folder that cannot be written. place: the key or the option that names it."""
    target = target.absolute()
    links = [path for path in (target, *target.parents) if path.is_symlink() and not path.exists()]
    reason = getattr(error, "strerror", None) or first_line(error)
    if links:
        reason = f"{links[0]} is a link to {links[0].readlink()}, which does not exist"
    return UserError(f"{place}: cannot write {target} ({reason}); choose another place")


@contextmanager
def optional_package(what: str, extra: str) -> Iterator[None]:
    """Context in which a package that cannot be imported becomes a UserError.

    what: place that needs the package, and its name. extra: that installs it.
    """
    try:
        yield
    except ImportError as error:
        raise UserError(
            f"{what}, which cannot be imported ({one_line(error)}); install it with `uv pip install -e '.[{extra}]'` "
            "in Hedgerow's folder"
        ) from None


class RayLost(UserError):  # noqa: N818
    """Raised when the Ray cluster of a run or a search has died. It can be resumed on another cluster."""


class ProcessesLost(UserError):  # noqa: N818
    """Raised when processes that a run has forked have ended and cannot be replaced. It can be resumed."""


class Unsaved(UserError):  # noqa: N818
    """Raised when files of a run cannot be written, since the disk is full. It can be resumed."""


@contextmanager
def on_full_disk(advice: str, folder: PathLike[str] | str = "") -> Iterator[None]:
    """Context in which the error of a full disk becomes an Unsaved.

    advice: what to do when there is room. folder: place of the files, for an error that names none.
    """
    try:
        yield
    except OSError as error:
        if not is_disk_full(error):
            raise
        place = error.filename or fspath(folder)
        raise Unsaved(f"{place}{': ' if place else ''}{error.strerror}; make room, then {advice}") from None


INTERRUPTIONS = (KeyboardInterrupt, RayLost, ProcessesLost)
"""Errors after which a run is interrupted, not failed."""


def mistakes(source: str, sentences: Sequence[str]) -> UserError:
    """UserError that lists all mistakes of a file without duplicates, below a heading if there are several."""
    messages = list(dict.fromkeys(sentences))
    heading = [f"{source}: {len(messages)} mistakes"] if len(messages) > 1 else []
    error = UserError("\n  ".join(heading + messages))
    error.several = messages
    return error


class Interrupted(_OneSentence, KeyboardInterrupt):
    """Raised on Ctrl-C, SIGTERM, SIGHUP or a notebook's stop in the middle of a run or a search.

    number: number of the signal. finished: message for a run that has nothing left to resume.
    """

    def __init__(self, folder: PathLike[str], number: int = signal.SIGINT, finished: str = ""):
        super().__init__(number)
        self.folder, self.finished = fspath(folder), finished

    def __str__(self) -> str:
        return self.finished or f"hedgerow.resume({self.folder!r}) continues from the last checkpoint"
