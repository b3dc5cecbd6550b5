"""What a user is meant to read."""

import signal
from collections.abc import Sequence
from os import PathLike, fspath


def first_line(error: BaseException) -> str:
    """What an error says, short enough to stand in a sentence; its kind, where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


class _Told:
    """A notebook shows the sentence, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class UserError(_Told, Exception):
    """A mistake in what the user asked for, in one sentence that names the place and the fix.

    The command line prints it without a traceback and ends with exit code 2.
    """

    several: Sequence[str] = ()
    """A sentence for each of several mistakes."""

    @property
    def sentences(self) -> list[str]:
        """One for each mistake."""
        return list(self.several) or [str(self)]


class RayLost(UserError):  # noqa: N818
    """The Ray on which a run or a search works has died. It can be resumed, on another one."""


def mistakes(source: str, sentences: Sequence[str]) -> UserError:
    """All mistakes of a file, each of them once, below a heading where there are several."""
    found = list(dict.fromkeys(sentences))
    heading = [f"{source}: {len(found)} mistakes"] if len(found) > 1 else []
    error = UserError("\n  ".join(heading + found))
    error.several = found
    return error


class Interrupted(_Told, KeyboardInterrupt):
    """Ctrl-C, SIGTERM or a notebook's stop, in the middle of a run or a search.

    number: the signal's. finished: what to say of a run that has nothing left to resume.
    """

    def __init__(self, folder: PathLike[str], number: int = signal.SIGINT, finished: str = ""):
        super().__init__(number)
        self.folder, self.finished = fspath(folder), finished

    def __str__(self) -> str:
        return self.finished or f"hedgerow.resume({self.folder!r}) continues from the last checkpoint"
