"""Classes by name: the built-in algorithms, and the user's own algorithms and models by their dotted paths."""

import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module

from hedgerow.platform.common.errors import UserError


def import_object(dotted: str, base: type, what: str, place: str) -> type:
    """The user's class at a dotted path such as `my_package.my_module.MyClass`.

    base: what it must derive from, called `what` in messages; place: the key in the file. Raises UserError.
    """
    module_name, _, attribute = dotted.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in dotted.split(".")):
        raise UserError(f"{place}: {dotted!r} is not a dotted path; write one such as my_module.MyClass")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{place}: cannot import {dotted!r}: no module named {error.name!r}; run from the folder that holds it, or "
            "install it"
        ) from None
    except Exception as error:
        raise UserError(f"{place}: cannot import {dotted!r}: {_mistake(error)}; mend it there") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise UserError(f"{place}: module {module_name!r} has no {attribute!r}{nearest(attribute, dir(module))}")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{place}: {dotted!r} is not {what}; name a class that derives from {base.__name__}")
    return found


FOREIGN = {
    "learning_rate": "lr",
    "num_rounds": "rounds",
    "num_clients": "clients",
    "n_clients": "clients",
    "fraction_fit": "participation",
    "fraction": "participation",
    "local_epochs": "epochs",
    "num_epochs": "epochs",
    "local_steps": "steps",
    "wd": "weight_decay",
    "optimiser": "optimizer",
    "dataset": "data",
    "method": "algorithm",
}
"""Names of other frameworks for our keys."""


def closest(word: str, words: Iterable[str]) -> str | None:
    """The word that is meant: one of `FOREIGN`, or the nearest in spelling, whatever its case; None: none is near."""
    words = list(words)
    if (ours := FOREIGN.get(word.lower().replace("-", "_"))) in words:
        return ours
    spelled = {w.lower(): w for w in words}
    close = get_close_matches(word.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


def nearest(word: str, words: Iterable[str]) -> str:
    """`; did you mean 'lr'?` for the word nearest in spelling, or nothing when none is near."""
    close = closest(word, words)
    return f"; did you mean {close!r}?" if close else ""


def _mistake(error: Exception) -> str:
    """What went wrong in the user's module, and where: one line in place of the traceback."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"{text} in {error.filename}"
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {frame.filename}:{frame.lineno}: {text}"
