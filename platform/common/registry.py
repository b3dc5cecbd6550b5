"""Registries of classes by name: built-in classes from a table and users' own classes by dotted path."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Generic, Literal, TypeVar, Union

from pydantic import (
    BaseModel,
    Discriminator,
    SerializeAsAny,
    Tag,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
    create_model,
)
from pydantic_core import PydanticCustomError

from hedgerow.algorithms.core.own_code import ImportRefusedError, find, home_of, is_own
from hedgerow.platform.common.errors import UserError
from hedgerow.platform.common.own_code_errors import failure

DOTTED = r"^[^.\s]+(\.[^.\s]+)+$"
"""Pattern of the dotted path of a class."""

OWN = "."
"""Tag of the last branch of a union, for the dotted path of a user's own class. No table contains this name."""

OWN_WORDS = "the dotted path of your own"

WITHOUT_IMPORTS = {"imports": False}
"""Validation context that imports no user code: keys of a user's own section are accepted unchecked."""

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes or objects that one key of an experiment file may name.

    table: name -> "module:Class", as strings, so that names can be listed without imports. base: base class of all of
    them, including users' own. key: key of the experiment file, such as "task.data.name"; its last word is the field
    that selects among sections. own: section of a user's own class, if that class is not a section itself. enter:
    converts the object at a dotted path to an instance of `base`, None if it cannot; without it, a dotted path names a
    subclass of `base`. what: noun phrase for one of them. function: section of a user's own function; None: only
    classes may be named.
    """

    def __init__(
        self,
        table: Mapping[str, str],
        base: type[T],
        key: str,
        own: type[BaseModel] | None = None,
        enter: Callable[[Any], T | None] | None = None,
        what: str | None = None,
        function: Any = None,
    ):
        self.table, self.base, self.key = table, base, key
        self.selector = key.rpartition(".")[2]
        self._own, self._enter, self._what = own, enter, what or described(base)
        self._function = function

    def names(self) -> list[str]:
        """Names of the built-in classes, in the order of the table."""
        return list(self.table)

    def resolve(self, name: str, place: str | None = None) -> type[T]:
        """Returns the class or object of a built-in name or at a dotted path. Imports only its module.

        place: prefix of the error message; None: the key. Raises UserError.
        """
        place = self.key if place is None else place
        if name in self.table:
            module, _, attribute = self.table[name].partition(":")
            target: type[T] = getattr(import_module(module), attribute)
            return target
        what = self._what
        if "." in name and self._enter:
            candidate = import_named(name, place)
            entered: Any = self._enter(candidate)
            if entered is None:
                raise UserError(f"{_beginning(place)}{name!r} is not {what}; name one")
            # A class is of the kind that its key needs, or it could not enter.
            if not isinstance(candidate, self.base | type):
                require_own(candidate, name, what, place)
            target = entered
            return target
        if "." in name:
            return import_object(name, self.base, what, place, self._function)
        raise UserError(
            f"{_beginning(place)}{name!r} is not {what}{nearest(name, self.table)} (allowed: "
            f"{', '.join([*sorted(self.table), f'or {OWN_WORDS}']).removeprefix('or ')})"
        )

    def section(self, name: str, place: str | None = None) -> type[Any]:
        """Returns the section class that a name selects: the settings of its class, whose selector is fixed to the
        name.

        A class that is not a section itself has its settings in `Hyper`. Raises UserError.
        """
        target: Any = self.resolve(name, place)
        return stamped(getattr(target, "Hyper", target), self.selector, name)

    def union(self, default: str | None = None) -> Any:
        """Type of a field that takes any of the sections: a branch for each built-in name and one for users' own.

        Imports the modules of all built-in classes. default: name of sections that give none; None: the name is
        required.
        """
        own = self._own or self._own_branch()
        if not self.table:
            return own
        branches: list[Any] = [Annotated[self.section(name), Tag(name)] for name in self.table]
        branches.append(Annotated[own, Tag(OWN)])

        def tag(values: Any) -> Any:
            value = values.get(self.selector) if isinstance(values, dict) else getattr(values, self.selector, None)
            name = default if value is None else value
            return OWN if isinstance(name, str) and "." in name else name

        return Annotated[Union[tuple(branches)], Discriminator(tag)]  # noqa: UP007

    def _own_branch(self) -> Any:
        """Branch for users' own sections: validated by the class that they name, serialized with all its fields."""
        base: Any = self.base
        text = f"Your own subclass of {base.__name__}: `{self.selector}` is its dotted path, other keys are its fields."
        if self._function:
            keys = ", ".join(f"`{key}`" for key in self._function.model_fields if key != self.selector)
            text += f" Or your own function, with the keys {keys}."
        namespace = {"__module__": __name__, "__doc__": text, "__annotations__": {self.selector: str}}
        unread = type(base)(f"Own{base.__name__}", (base,), namespace, extra="allow")
        _REGISTRIES[unread] = self

        def enter(values: Any, unread_as: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
            if isinstance(values, base):
                return values
            name = values.get(self.selector) if isinstance(values, dict) else None
            if info.context == WITHOUT_IMPORTS or not isinstance(name, str):
                return unread_as(values)
            try:
                section = self.section(name, place="")
            except UserError as error:
                # The location of the pydantic error names the place.
                raise PydanticCustomError("own_class", "{error}", {"error": str(error)}) from None
            return section.model_validate(values, strict=True, context=info.context)

        own = "class or function" if self._function else "class"
        selector = {"type": "string", "pattern": DOTTED, "description": f"dotted path of your own {own}"}
        schema = {
            "title": "your own",
            "type": "object",
            "description": text,
            "properties": {self.selector: selector},
            "required": [self.selector],
        }
        return Annotated[SerializeAsAny[unread], WrapValidator(enter), WithJsonSchema(schema)]  # type: ignore[misc, valid-type]


@cache
def stamped(section: type[BaseModel], selector: str, name: str) -> type[BaseModel]:
    """Subclass of a section whose field `selector` is fixed to `name`.

    Cached, since only instances of the same class compare equal. Instances are pickled by these arguments and their
    state.
    """
    fields: Any = {selector: (Literal[name], name)}
    subclass = create_model(
        section.__name__, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **fields
    )
    subclass.__reduce__ = lambda self: (_restored, (section, selector, name, self.__getstate__()))  # type: ignore[method-assign]
    return subclass


def _restored(section: type[BaseModel], selector: str, name: str, state: Any) -> BaseModel:
    subclass = stamped(section, selector, name)
    instance = subclass.__new__(subclass)
    instance.__setstate__(state)
    return instance


_REGISTRIES: dict[type[BaseModel], "Registry[Any]"] = {}
"""Registries, by the class of the last branch of their union."""


def selector_of(section: type[BaseModel]) -> str | None:
    """Key of a section whose value may be a dotted path: of a union's last branch, or its `dotted_key`; else None."""
    registry = _REGISTRIES.get(section)
    key: str | None = registry.selector if registry else getattr(section, "dotted_key", None)
    return key


def own_section(branch: type[BaseModel], values: Any) -> type[BaseModel]:
    """User's own section class that `values` name, for the last branch of a union; `branch` if there is none."""
    registry = _REGISTRIES.get(branch)
    if registry is None or not isinstance(values, dict):
        return branch
    try:
        section: type[BaseModel] = registry.section(values[registry.selector])
    except UserError:
        return branch
    return section


def described(base: type) -> str:
    """Noun phrase for a class derived from `base`, such as "an algorithm" or "a partition scheme"."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", base.__name__).lower()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _beginning(place: str) -> str:
    return f"{place}: " if place else ""


def import_object(dotted: str, base: type, what: str, place: str, function: type | None = None) -> type:
    """Imports the user's class at a dotted path such as `my_package.my_module.MyClass`.

    base: class that it must derive from, called `what` in messages. place: key in the file, or empty. function: class
    that is returned if the path names a function; None: functions are refused. Raises UserError.
    """
    candidate = import_named(dotted, place)
    if isinstance(candidate, type) and issubclass(candidate, base):
        return candidate
    if function and callable(candidate) and not isinstance(candidate, type):
        require_own(candidate, dotted, what, place)
        return function
    fix = f"name a class that derives from {base.__name__}{', or a function' if function else ''}"
    raise UserError(f"{_beginning(place)}{dotted!r} is not {what}; {fix}")


def import_named(dotted: str, place: str) -> Any:
    """Imports the user's object at a dotted path. place: key in the file, or empty. Raises UserError."""
    at = _beginning(place)
    module_name, _, attribute = dotted.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in dotted.split(".")):
        raise UserError(f"{at}{dotted!r} is not a dotted path; write one such as my_module.MyClass")
    try:
        candidate = find(dotted)
    except ImportRefusedError as error:
        raise UserError(f"{at}cannot import {dotted!r}: {error}") from None
    except ModuleNotFoundError as error:
        raise UserError(
            f"{at}cannot import {dotted!r}: no module named {error.name!r}; put it into the folder of the experiment "
            "file, or install it"
        ) from None
    except Exception as error:
        raise UserError(f"{at}cannot import {dotted!r}: {failure(error)}; fix it there") from error
    if candidate is None:
        names = dir(sys.modules[module_name])
        raise UserError(f"{at}module {module_name!r} has no {attribute!r}{nearest(attribute, names)}")
    return candidate


def require_own(candidate: Any, dotted: str, what: str, place: str) -> None:
    """Raises UserError if an object is not defined in the user's own code, so that it must not be called."""
    if not is_own(candidate, dotted):
        home = home_of(candidate) or dotted.rpartition(".")[0]
        raise UserError(
            f"{_beginning(place)}{dotted!r} is not {what} of yours, because it is defined in {home!r}; name one in a "
            f"module next to the experiment file, or trust that module with `--import {home}`"
        )


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
"""Names of keys in other frameworks -> our names."""


def closest(word: str, words: Iterable[str]) -> str | None:
    """Intended word: its translation in `FOREIGN`, or the nearest in spelling, ignoring case; None if there is none."""
    words = list(words)
    if (ours := FOREIGN.get(word.lower().replace("-", "_"))) in words:
        return ours
    spelled = {w.lower(): w for w in words}
    close = get_close_matches(word.lower(), spelled, n=1)
    return spelled[close[0]] if close else None


def nearest(word: str, words: Iterable[str]) -> str:
    """Hint such as `; did you mean 'lr'?` for the word nearest in spelling; empty if there is none."""
    close = closest(word, words)
    return f"; did you mean {close!r}?" if close else ""
