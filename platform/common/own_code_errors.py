"""Errors in the user's own code: where it fails and why, without the frames of this package and of libraries."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hedgerow.algorithms.core.own_code import is_installed
from hedgerow.platform.common.errors import UserError, is_disk_full


@contextmanager
def own_errors() -> Iterator[None]:
    """Context in which an error of the user's own code becomes a UserError about its place."""
    try:
        yield
    except Exception as error:
        if own := own_error(error):
            raise own from error
        raise


def own_error(error: Exception) -> UserError | None:
    """UserError about an error in the user's own code, or about what it returns; None for others and those with their
    own sentence.
    """
    # Commands that need no torch do not import it.
    from hedgerow.algorithms.core.parts import ContractError
    from hedgerow.platform.common.memory import is_exhausted

    if isinstance(error, ContractError) and error.key:
        return UserError(f"{error.key}: {error}")
    has_sentence = isinstance(error, (UserError, ContractError)) or is_exhausted(error)
    if has_sentence or is_disk_full(error) or _own_place(error) is None:
        return None
    return UserError(f"your code fails: {failure(error)}; fix it there")


def failure(error: Exception) -> str:
    """Kind of an error, its place in the user's own code, and its message, on one line in place of the traceback."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"{text} in {error.filename}"
    place = _own_place(error)
    return f"{type(error).__name__}{f' at {place}' if place else ''}: {text}"


def _own_place(error: Exception) -> str | None:
    """Innermost place in the user's own code that this package has called; None if there is none."""
    frames = list(traceback.walk_tb(error.__traceback__))
    ours = [i for i, (frame, _) in enumerate(frames) if _is_ours(frame)]
    for frame, line in reversed(frames[ours[0] :] if ours else []):
        code = frame.f_code
        is_generated = code.co_filename.startswith(("<frozen", "<string"))
        if not (_is_ours(frame) or is_generated or is_installed(code.co_filename)):
            function = "" if code.co_name == "<module>" else f", in {code.co_name}"
            return f"{code.co_filename}:{line}{function}"
    return None


def _is_ours(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return name == "hedgerow" or name.startswith("hedgerow.")
