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
    """A mistake in what the user asked for, told in one sentence that names the place and the mend.

    The command line prints it without a traceback and ends with exit code 2.
    """


class RayLost(UserError):  # noqa: N818
    """The Ray on which a run or a search works has died. It can be resumed, on another one."""


class Mistakes(UserError):  # noqa: N818
    """All mistakes of a file: one sentence each, below a heading where there are several."""

    def __init__(self, source: str, sentences: list[str]):
        heading = [f"{source}: {len(sentences)} mistakes"]
        super().__init__("\n  ".join(sentences if len(sentences) == 1 else heading + sentences))
        self.sentences = sentences

    @classmethod
    def of(cls, source: str, errors: Sequence[UserError]) -> "Mistakes":
        """The mistakes of several errors, each of them once."""
        found = [s for error in errors for s in (error.sentences if isinstance(error, Mistakes) else [str(error)])]
        return cls(source, list(dict.fromkeys(found)))


class Interrupted(_Told, KeyboardInterrupt):
    """Ctrl-C, SIGTERM or a notebook's stop, in the middle of a run or a search.

    number: the signal's. finished: what to say of a run that has nothing left to resume.
    """

    def __init__(self, folder: PathLike[str], number: int = signal.SIGINT, finished: str = ""):
        super().__init__(number)
        self.folder, self.finished = fspath(folder), finished

    def __str__(self) -> str:
        return self.finished or f"hedgerow.resume({self.folder!r}) continues from the last checkpoint"
