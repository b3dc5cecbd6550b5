"""Classes by name: the built-in ones from a table, the user's own by a dotted path, both by the same door."""

import re
import traceback
from collections.abc import Iterable, Mapping
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

from hedgerow.platform.common.errors import UserError

DOTTED = r"^[^.\s]+(\.[^.\s]+)+$"
"""Pattern of the dotted path of a class."""

OWN = "."
"""Tag of the last branch of a union, the dotted path of a class of the user's own; no name of a table."""

OWN_WORDS = "the dotted path of your own"

WITHOUT_IMPORTS = {"imports": False}
"""Context of a validation that imports nothing of the user's: the keys of such a section are taken as they stand."""

T = TypeVar("T")


class Registry(Generic[T]):
    """The classes that one key of an experiment file may name.

    table: name -> "module:Class", strings, so that names can be listed without an import. base: what every class
    derives from, the user's own too. key: of the experiment file, such as "task.data.name"; its last word is the field
    that selects among sections. own: the section of a class of the user's own where that is no section itself.
    aliases: other names of built-in classes -> their names in the table.
    """

    def __init__(
        self,
        table: Mapping[str, str],
        base: type[T],
        key: str,
        own: type[BaseModel] | None = None,
        aliases: Mapping[str, str] | None = None,
    ):
        self.table, self.base, self.key, self.aliases = table, base, key, aliases or {}
        self.selector = key.rpartition(".")[2]
        self._own = own

    def names(self) -> list[str]:
        """Names of the built-in classes, in the order of the table."""
        return list(self.table)

    def resolve(self, name: str, place: str | None = None) -> type[T]:
        """The class of a built-in name, or at a dotted path. Imports the module of this class alone.

        place: begins the message; None: the key. Raises UserError.
        """
        place = self.key if place is None else place
        name = self.aliases.get(name, name)
        if name in self.table:
            module, _, attribute = self.table[name].partition(":")
            found: type[T] = getattr(import_module(module), attribute)
            return found
        what = described(self.base)
        if "." in name:
            return import_object(name, self.base, what, place)
        known = [*self.table, *self.aliases]
        raise UserError(
            f"{_beginning(place)}{name!r} is not {what}{nearest(name, known)} (allowed: "
            f"{', '.join([*sorted(known), f'or {OWN_WORDS}']).removeprefix('or ')})"
        )

    def section(self, name: str, place: str | None = None) -> type[Any]:
        """The class of the section that a name selects: the settings of its class, with the name stamped on.

        The settings of a class that is no section itself are its `Hyper`. Raises UserError.
        """
        found: Any = self.resolve(name, place)
        return stamped(getattr(found, "Hyper", found), self.selector, name)

    def union(self, default: str | None = None) -> Any:
        """The type of a field that takes any of the sections: one branch for each built-in name, the last for others.

        Imports the modules of all built-in classes. default: the name of sections that give none; None: they must.
        """
        own = self._own or self._own_branch()
        if not self.table:
            return own
        branches: list[Any] = [Annotated[self.section(name), Tag(name)] for name in self.table]
        branches.append(Annotated[own, Tag(OWN)])

        def tag(values: Any) -> Any:
            given = values.get(self.selector) if isinstance(values, dict) else getattr(values, self.selector, None)
            name = default if given is None else given
            return OWN if isinstance(name, str) and "." in name else name

        return Annotated[Union[tuple(branches)], Discriminator(tag)]  # noqa: UP007

    def _own_branch(self) -> Any:
        """Sections of the user's own: validated by the class that they name, and serialized with all of its fields."""
        base: Any = self.base
        text = f"Your own subclass of {base.__name__}: `{self.selector}` is its dotted path, other keys are its fields."
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
                # The place is in the error's location.
                raise PydanticCustomError("own_class", "{error}", {"error": str(error)}) from None
            return section.model_validate(values, strict=True, context=info.context)

        selector = {"type": "string", "pattern": DOTTED, "description": "dotted path of a class of your own"}
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
    """A section whose `selector` is `name`, which the class itself does not say.

    Cached, since only instances of one and the same class compare equal. Instances are pickled by what they were made
    of.
    """
    fields: Any = {selector: (Literal[name], name)}
    made = create_model(
        section.__name__, __base__=section, __module__=section.__module__, __doc__=section.__doc__, **fields
    )
    made.__reduce__ = lambda self: (_restored, (section, selector, name, self.__getstate__()))  # type: ignore[method-assign]
    return made


def _restored(section: type[BaseModel], selector: str, name: str, state: Any) -> BaseModel:
    made = stamped(section, selector, name)
    instance = made.__new__(made)
    instance.__setstate__(state)
    return instance


_REGISTRIES: dict[type[BaseModel], "Registry[Any]"] = {}
"""By the class of the last branch of a registry's union."""


def own_section(branch: type[BaseModel], values: Any) -> type[BaseModel]:
    """The user's own section that values name, of the last branch of a union; the branch itself where none is found."""
    registry = _REGISTRIES.get(branch)
    if registry is None or not isinstance(values, dict):
        return branch
    try:
        section: type[BaseModel] = registry.section(values[registry.selector])
    except UserError:
        return branch
    return section


def described(base: type) -> str:
    """What a class derived from `base` is: "an algorithm", "a partition scheme"."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", base.__name__).lower()
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _beginning(place: str) -> str:
    return f"{place}: " if place else ""


def import_object(dotted: str, base: type, what: str, place: str) -> type:
    """The user's class at a dotted path such as `my_package.my_module.MyClass`.

    base: what it must derive from, called `what` in messages; place: the key in the file, or nothing. Raises UserError.
    """
    at = _beginning(place)
    module_name, _, attribute = dotted.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in dotted.split(".")):
        raise UserError(f"{at}{dotted!r} is not a dotted path; write one such as my_module.MyClass")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"{at}cannot import {dotted!r}: no module named {error.name!r}; run from the folder that holds it, or "
            "install it"
        ) from None
    except Exception as error:
        raise UserError(f"{at}cannot import {dotted!r}: {_mistake(error)}; fix it there") from error
    found = getattr(module, attribute, None)
    if found is None:
        raise UserError(f"{at}module {module_name!r} has no {attribute!r}{nearest(attribute, dir(module))}")
    if not (isinstance(found, type) and issubclass(found, base)):
        raise UserError(f"{at}{dotted!r} is not {what}; name a class that derives from {base.__name__}")
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
